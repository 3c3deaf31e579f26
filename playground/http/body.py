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
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class _TooLarge(Exception):
    pass


class BodyLimit:
    """Passes requests on to `application`; a body over `limit` bytes, declared or real, is answered here."""

    def __init__(self, application: Application, limit: int) -> None:
        self.application = application
        self.limit = limit

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not declared.isdigit() or len(declared) > 18 or int(declared) > self.limit:
            await self._refuse(send)
            return
        received = 0
        answered = False

        async def counting_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body") or b"")
            if received > self.limit:
                raise _TooLarge
            return message

        async def noting_send(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        try:
            await self.application(scope, counting_receive, noting_send)
        except _TooLarge:
            if not answered:
                await self._refuse(send)

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
