"""ASGI middleware that bounds an HTTP body before Django reads it.

Django's own limit comes later and answers with HTML; this one counts bytes and answers JSON 413.
Must not know: Django, what the body means.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from playground import metrics

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
        headers, body = too_large(self.limit)
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def too_large(limit: int) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers and body of the answer, in the shape that OpenAI's clients know and ours too."""
    message = f"The body is larger than {limit} bytes, which is the most that is read."
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": "too_large"}
    body = json.dumps({"error": error}).encode()
    metrics.refused("too_large")
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    return headers, body
