"""Daphne's HTTP requests with bodies that are bounded as they come in.

Daphne itself keeps a body of any size in a temporary file before anybody may look at it. Here one over the limit is
answered with 413 as soon as that is known, and the rest of it is thrown away. Twisted reads whatever calls itself a
form, on the loop and for seconds, though nobody asks for the result; here it doesn't. And Daphne lets any client say
below which path this service is, by which an address would have as many names as a proxy has rules for it.
Must not know: Django, what is asked or answered. Import it once Twisted's reactor is installed.
"""

from __future__ import annotations

import asyncio
from typing import Any

from daphne.http_protocol import HTTPFactory, WebRequest

from playground.http.body import too_large

LINGER = 5.0  # seconds in which a client may send the rest of a body that nobody wants


class BoundedRequest(WebRequest):
    body_limit: int  # bytes

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._received = 0
        self._given_up: asyncio.TimerHandle | None = None  # the timer of a client whose body is not wanted
        super().__init__(*args, parsePOSTFormSubmission=False, **kwargs)

    def gotLength(self, length: int | None) -> None:
        super().gotLength(length)
        if length is not None and length > self.body_limit:
            self._refuse()

    def handleContentChunk(self, data: bytes) -> None:
        self._received += len(data)
        if self._given_up is None and self._received > self.body_limit:
            self._refuse()
        if self._given_up is None:
            super().handleContentChunk(data)

    def process(self) -> Any:
        self.requestHeaders.removeHeader(b"Daphne-Root-Path")
        if self._given_up is None:
            return super().process()
        self.channel.loseConnection()

    def _refuse(self) -> None:
        """At once; but what the client is sending is read, or it would be cut off before it has read the answer."""
        headers, body = too_large(self.body_limit)
        lines = [b"HTTP/1.1 413 Content Too Large", *(name + b": " + value for name, value in headers)]
        connection: Any = self.transport
        connection.write(b"\r\n".join([*lines, b"", body]))
        self._given_up = asyncio.get_running_loop().call_later(LINGER, connection.abortConnection)

    def connectionLost(self, reason: Any) -> None:
        if self._given_up is not None:
            self._given_up.cancel()
        super().connectionLost(reason)


class BoundedFactory(HTTPFactory):
    def buildProtocol(self, addr: Any) -> Any:
        protocol: Any = super().buildProtocol(addr)
        protocol.requestFactory = BoundedRequest
        return protocol
