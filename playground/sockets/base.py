"""What the sockets have in common: who may stay, frames in, frames out, and that nothing a client sends ends a socket.

Knows: ASGI's events and the protocol. Must not know: what a message does (that is in the subclass' `on_<type>`).
A message handler must be quick: the next frame is heard when it returns. What lasts runs in a task (`start`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, cast

from channels.db import database_sync_to_async
from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.contrib.auth.models import User

from inference.serving.client import end_tasks
from playground.gateway import get_gateway
from playground.sockets.frames import decode
from playground.sockets.protocol import ErrorFrame, Hello, Limits, Ping, Pong, ProtocolError, ServerModel

UNAUTHORIZED = 4401
FORBIDDEN = 4403
INTERNAL = "Something went wrong on the server. The log has the details."

log = logging.getLogger(__name__)
database = database_sync_to_async


class Socket(AsyncWebsocketConsumer):
    """One client's connection. Handlers raise ProtocolError for what the client should mend."""

    @property
    def user(self) -> User:
        """Who this is; AnonymousUser until `refusal` has let it pass."""
        return cast(User, self.scope["user"])

    async def websocket_connect(self, message: Any) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._lasting: set[asyncio.Task[None]] = set()
        self._open = True
        await self.accept()
        code = self.refusal()
        if code:
            # Accepted first: a browser is not told the status of a refused handshake, only the code of a close.
            await self.close(code)
            return
        await self._guarded(self.opened())

    def refusal(self) -> int | None:
        """The code to close with, if this client has no right to be here."""
        return None if self.user.is_authenticated else UNAUTHORIZED

    async def opened(self) -> None:
        gateway = get_gateway()
        await gateway.ensure_started()
        await self.send_message(Hello(model=settings.BATCHSCOPE.model_name, limits=_limits()))

    async def websocket_receive(self, message: Any) -> None:
        if self._open and self.refusal() is None:
            await self._guarded(self._handle(message.get("text"), message.get("bytes")))

    async def _handle(self, text: str | None, data: bytes | None) -> None:
        received = decode(text, data)
        handler = getattr(self, f"on_{received.type}", None)
        if handler is None:
            raise ProtocolError("bad_message", f"this socket takes no {received.type} messages")
        await self._labelled(received, handler(received))

    async def _labelled(self, received: Any, work: Coroutine[Any, Any, None]) -> None:
        """An error says which message it answers."""
        labels = getattr(received, "ref", None), getattr(received, "request_id", None)
        try:
            await work
        except ProtocolError as error:
            error.ref, error.request_id = error.ref or labels[0], error.request_id or labels[1]
            raise
        except Exception:
            log.exception("message_failed", extra={"code": "internal"})
            raise ProtocolError("internal", INTERNAL, *labels) from None

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """An error becomes an error frame; the socket lives."""
        try:
            await work
        except ProtocolError as error:
            frame = ErrorFrame(code=error.code, message=str(error), ref=error.ref, request_id=error.request_id)
            await self.send_message(frame)
        except Exception:
            log.exception("socket_failed", extra={"code": "internal"})
            await self.send_message(ErrorFrame(code="internal", message=INTERNAL))

    async def on_ping(self, message: Ping) -> None:
        await self.send_message(Pong(t=message.t))

    async def send_message(self, message: ServerModel) -> None:
        await self.send_text(message.frame())

    async def send_text(self, frame: str) -> None:
        if self._open:
            await self.send(text_data=frame)

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` beside the socket, in place of an older task of this name. It ends with the socket."""
        self.stop(name)
        task = asyncio.create_task(self._guarded(work))
        self._tasks[name] = task
        task.add_done_callback(lambda done: self._tasks.pop(name) if self._tasks.get(name) is done else None)

    def finish(self, received: Any, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, which a message asked for, beside the socket, to its end though the socket may close."""
        task = asyncio.create_task(self._guarded(self._labelled(received, work)))
        self._lasting.add(task)
        task.add_done_callback(self._lasting.discard)

    def stop(self, name: str) -> None:
        if (task := self._tasks.pop(name, None)) is not None:
            task.cancel()

    async def close(self, code: int | None = None, reason: str | None = None) -> None:
        self._open = False
        await super().close(code, reason)

    async def websocket_disconnect(self, message: Any) -> None:
        self._open = False
        if self._lasting:
            await asyncio.wait(self._lasting)
        await end_tasks(list(self._tasks.values()))
        raise StopConsumer


def _limits() -> Limits:
    return Limits(max_model_len=settings.BATCHSCOPE.max_model_len)
