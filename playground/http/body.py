"""ASGI middleware that bounds an HTTP body before Django reads it.

Django's own limit comes later and answers with HTML; this one counts bytes and answers JSON 413.
Must not know: Django, what the body means.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class BodyLimit:
    """Hands requests on to `application` with their body in one piece; one over `limit` bytes, declared or real, is
    answered here."""

    def __init__(self, application: Any, limit: int) -> None:
        self.application = application
        self.limit = limit

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not declared.isdigit() or len(declared) > 18 or int(declared) > self.limit:
            await self._refuse(send)
            return
        pieces: list[bytes] = []
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            pieces.append(message.get("body") or b"")
            size += len(pieces[-1])
            more = message.get("more_body", False)
            if size > self.limit:
                await self._refuse(send)
                return
        whole: list[Message] = [{"type": "http.request", "body": b"".join(pieces), "more_body": False}]

        async def receive_whole() -> Message:
            return whole.pop() if whole else await receive()

        await self.application(scope, receive_whole, send)

    async def _refuse(self, send: Send) -> None:
        message = f"The body is larger than {self.limit} bytes, which is the most that is read."
        body = json.dumps({"error": {"code": "too_large", "message": message}}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": body})
