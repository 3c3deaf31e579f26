"""Daphne as this service needs it: it waits for slow readers, says why it closes, and drains before it ends.

Knows: Daphne's and Twisted's insides, signals. Must not know: what a socket is for, who is told what at the end
(playground.drain). Importing this installs Twisted's asyncio reactor. Daphne itself writes to any client as much as the
application sends and reads as fast as a client sends, whatever memory that takes; and at SIGTERM it cuts all at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Sequence
from typing import Any

from daphne import server
from daphne.server import Server
from daphne.ws_protocol import WebSocketFactory, WebSocketProtocol
from django.conf import settings

from playground.drain import get_drain
from playground.http.openai.calls import get_open_calls
from playground.http.transport import BoundedFactory, BoundedRequest
from playground.sockets.base import UNSENT
from playground.sockets.flow import PAUSES, STUCK_AFTER, WINDOW
from playground.sockets.registry import get_open_sockets

KERNEL_BUFFER = 128 << 10  # bytes a socket's kernel buffer has for what is sent; Linux would let it grow to megabytes
UNREAD = 16  # messages of a client that wait to be handled; beyond, it is read no further
CLOSE_WITHIN = 5.0  # seconds for a client's answer to a close
HUNG_UP_WITHIN = 1.0  # seconds from the answer to a breach until the connection ends
LINGER = 45.0  # seconds for it where the client has yet to read what was sent before

log = logging.getLogger("batchscope.web")


def unsent(transport: Any) -> int:
    """Bytes that were written to a Twisted transport and that its kernel has not taken yet."""
    if transport is None or not transport.connected:
        return 0
    return len(transport.dataBuffer) - transport.offset + transport._tempDataLen


class SocketProtocol(WebSocketProtocol):
    """One WebSocket. Reads no faster than the application handles messages."""

    transport: Any

    def onConnect(self, request: Any) -> Any:
        with contextlib.suppress(OSError):
            self.transport.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER)
        return super().onConnect(request)

    def unsent(self) -> int:
        return unsent(self.transport)

    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        super().onMessage(payload, isBinary)
        if self.application_queue.qsize() == UNREAD:
            self.transport.pauseProducing()
            asyncio.get_running_loop().call_later(PAUSES[0], self._read_on)

    def _read_on(self) -> None:
        if self.transport is None or not self.transport.connected:
            return
        if self.application_queue.qsize() < UNREAD:
            self.transport.resumeProducing()
        else:
            asyncio.get_running_loop().call_later(PAUSES[0], self._read_on)

    def handle_reply(self, message: dict[str, Any]) -> None:
        if message["type"] == "websocket.close" and self.state == self.STATE_OPEN:
            self._close(message.get("code") or 1000, message.get("reason"))
        else:
            super().handle_reply(message)

    def _close(self, code: int, reason: str | None) -> None:
        """Daphne leaves the reason out, and its way takes no code from 1001 to 2999. A client that is behind gets time
        to come to the close frame."""
        self.closeHandshakeTimeout = LINGER if self.unsent() else CLOSE_WITHIN
        if self.autoPingTimeoutCall is not None:
            self.autoPingTimeoutCall.cancel()
            self.autoPingTimeoutCall = None
        self.sendCloseFrame(code=code, reasonUtf8=reason.encode()[:123] if reason else None)

    def _fail_connection(self, code: int = 1001, reason: str = "going away") -> None:
        """A breach of the protocol is answered with its code, where autobahn would hang up; no more is read then."""
        if self.state != self.STATE_OPEN:
            self.dropConnection(abort=True)
            return
        self.closeHandshakeTimeout = HUNG_UP_WITHIN
        self.sendCloseFrame(code=code, reasonUtf8=reason.encode()[:123])
        self.transport.pauseProducing()

    def check_timeouts(self) -> None:
        if self.autoPingTimeoutCall is not None:
            self.last_ping = time.time()  # a second ping before the first one's answer would outlive it
        super().check_timeouts()


class WebServer(Server):
    def run(self) -> None:
        self._ports: list[Any] = []
        self._ending: asyncio.Task[None] | None = None
        self.signal_handlers = False  # Twisted's end it at once, and raise at the second signal
        for number in (signal.SIGTERM, signal.SIGINT):
            server.twisted_loop.add_signal_handler(number, self._on_signal)
        WebSocketFactory.protocol = SocketProtocol
        BoundedRequest.body_limit = settings.BODY_LIMIT
        server.HTTPFactory = BoundedFactory  # a server makes its factory by this name and no other way
        super().run()

    def listen_success(self, port: Any) -> None:
        self._ports.append(port)
        super().listen_success(port)

    def create_application(self, protocol: Any, scope: dict[str, Any]) -> Any:
        if isinstance(protocol, SocketProtocol):
            scope["extensions"] = {**scope.get("extensions", {}), UNSENT: protocol.unsent}
        return super().create_application(protocol, scope)

    async def handle_reply(self, protocol: Any, message: dict[str, Any]) -> None:
        await super().handle_reply(protocol, message)
        if message["type"] == "http.response.body" and message.get("more_body"):
            await _until_room(protocol)

    def _on_signal(self) -> None:
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._drain())
        else:
            get_drain().hurry()

    async def _drain(self) -> None:
        try:
            await get_drain().run((get_open_sockets(), get_open_calls(), _Connections(self.connections, self._ports)))
        except Exception:
            log.exception("drain_failed")
        self.stop()

    def kill_all_applications(self) -> Any:
        # Daphne's own work fails where an application has ended and its connection has not.
        self.connections = {p: d for p, d in self.connections.items() if "application_instance" in d}
        return super().kill_all_applications()


class _Connections:
    """What goes on beside those who are known to the application, as a group of playground.drain.

    Waited for are HTTP requests that were being answered when the process began to drain. Later ones are answered too,
    but they may come for as long as the process is there. At the very end there is a moment for whatever is left:
    sockets that have been closed or refused, and have yet to answer that, and the last requests.
    """

    def __init__(self, connections: dict[Any, dict[str, Any]], ports: Sequence[Any]) -> None:
        self._all, self._ports = connections, ports
        self._begun = [
            (protocol, details) for protocol, details in connections.items() if _is_answered(protocol, details)
        ]

    @property
    def is_busy(self) -> bool:
        return any(_is_answered(protocol, details) for protocol, details in self._begun)

    @property
    def is_empty(self) -> bool:
        return not any(
            _is_answered(protocol, details) or (isinstance(protocol, SocketProtocol) and "disconnected" not in details)
            for protocol, details in [*self._begun, *self._all.items()]
        )

    async def announce_end(self) -> None:
        pass

    async def dismiss_idle(self) -> None:
        pass

    async def dismiss_all(self) -> None:
        """Who comes from now on waits for the next process, where there is one that listens on the same socket."""
        for port in self._ports:
            port.stopReading()


def _is_answered(protocol: Any, details: dict[str, Any]) -> bool:
    """Whether an HTTP request has come and its answer has not gone out."""
    if not isinstance(protocol, BoundedRequest):
        return False
    return ("application_instance" in details and "disconnected" not in details) or unsent(protocol.transport) > 0


async def _until_room(request: Any) -> None:
    """Hold a streamed answer back until its reader has read most of it; cut off one that has stopped reading."""
    transport, since, pause = request.transport, time.monotonic(), PAUSES[0]
    while unsent(transport) >= WINDOW:
        if time.monotonic() - since >= STUCK_AFTER:
            log.info("reader_stuck: %s", request.path.decode("ascii", "replace"))
            transport.abortConnection()
            return
        await asyncio.sleep(pause)
        pause = min(2 * pause, PAUSES[1])
