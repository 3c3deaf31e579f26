"""What the sockets have in common: who may stay, frames in, frames out, and that nothing a client sends ends a socket.

Knows: ASGI's events and the protocol. Must not know: what a message does (that is in the subclass' `on_<type>`).
A message handler must be quick: the next frame is heard when it returns. What lasts runs in a task (`start`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, ClassVar

from channels.db import database_sync_to_async
from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.contrib.auth.models import User
from django.db import Error

from playground import metrics
from playground.access.callers import GENERATE
from playground.access.live_rights import standing_of
from playground.drain import get_drain
from playground.gateway import Gateway, get_gateway
from playground.served import longest_request
from playground.sockets.doors import enter
from playground.sockets.flow import Flow
from playground.sockets.frames import decode, labels_of
from playground.sockets.message_rate import ACK, ONE, MessageRate
from playground.sockets.protocol import (
    Ack,
    Draining,
    ErrorFrame,
    Hello,
    Limits,
    Ping,
    Pong,
    ProtocolError,
    ServerModel,
)
from playground.sockets.registry import get_open_sockets
from playground.sockets.work import Work

UNAUTHORIZED = 4401
FORBIDDEN = 4403
RESTARTS, LATER, ABUSE = 1012, 1013, 1008  # of RFC 6455's registry
_WORDS = {UNAUTHORIZED: "unauthorized", FORBIDDEN: "forbidden", RESTARTS: "draining", LATER: "rate_limited"}
STOPS = (RESTARTS, "this server is about to stop; connect again")
INTERNAL = "Something went wrong on the server. The log has the details."
STOPPED_READING = "nothing could be sent for 30 seconds; connect again and resume your requests with after_seq"
DECODED_AT_ONCE = 32 << 10  # characters of a frame that are read on the loop; more would hold up other streams
UNSENT = "batchscope.unsent"  # in ASGI's extensions: asks how many bytes the server holds for this client

log = logging.getLogger(__name__)
database = database_sync_to_async


class Socket(AsyncWebsocketConsumer):
    """One client's connection. Handlers raise ProtocolError for what the client should mend."""

    right: ClassVar[str] = GENERATE  # a scope of keys: what one must be allowed to do, to be here

    @property
    def user(self) -> User:
        return self.caller.user

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        kind = scope["path"].strip("/").removeprefix("ws/")
        metrics.socket_opened(kind)
        self._code: int | None = None  # of the close
        try:
            await super().__call__(scope, receive, send)
        finally:  # however it ends
            get_open_sockets().leave(self)
            metrics.socket_closed(kind, self._code)

    async def websocket_connect(self, message: Any) -> None:
        self._work = Work()
        self._rate = MessageRate(settings.BATCHSCOPE.messages_per_second)
        scope: Any = self.scope
        unsent = (scope.get("extensions") or {}).get(UNSENT, lambda: 0)
        self.flow = Flow(self.send_text, unsent, self._stopped_reading)
        self._open = True
        await self.accept()
        # Accepted first: a browser is not told the status of a refused handshake, only the code of a close.
        if refusal := await self._refusal():
            metrics.refused(_WORDS[refusal[0]])
            await self.close(*refusal)
        else:
            await self._guarded(self.opened())

    async def _refusal(self) -> tuple[int, str] | None:
        """The code and the words to close with, if this client may not be here."""
        if get_drain().is_draining:
            return STOPS
        try:
            caller, allowed = await database(enter)(self.scope, self.right)
        except Error as error:  # of the database
            log.warning("socket_not_checked: %s", type(error).__name__)
            return LATER, "accounts can't be looked up just now; try again later"
        if caller is None:
            return UNAUTHORIZED, "this needs an account or a valid key"
        if not allowed:
            return FORBIDDEN, "this account or key has no right to be here"
        session: Any = self.scope.get("session")
        self.caller, self.standing = caller, standing_of(caller, self.right, getattr(session, "session_key", None))
        if get_drain().is_draining:  # by now
            return STOPS
        words = get_open_sockets().admit(self)
        return (LATER, words) if words else None

    async def opened(self) -> None:
        gateway = get_gateway()
        await gateway.ensure_started()
        await self.send_message(Hello(model=settings.BATCHSCOPE.model_name, limits=await _limits(gateway)))

    async def websocket_receive(self, message: Any) -> None:
        if not self._open:
            return
        text = message.get("text")
        if self._rate.take(len(text or "")):
            await self._guarded(self._handle(text, message.get("bytes")))
        elif self._rate.is_abuse:
            await self.close(ABUSE, f"more than {self._rate.per_second} messages a second, for many seconds")
        else:
            words = f"more than {self._rate.per_second} messages a second came on this socket, large ones counted as "
            words += f"one for each {ONE >> 10} KiB; this one was not read"
            ref, request_id = labels_of(text)
            await self.send_error(ProtocolError("rate_limited", words, ref, request_id, self._rate.seconds_left))

    async def _handle(self, text: str | None, data: bytes | None) -> None:
        large = text is not None and len(text) > DECODED_AT_ONCE
        received = await asyncio.to_thread(decode, text, data) if large else decode(text, data)
        if isinstance(received, Ack):
            self._rate.give_back(1 - ACK)
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
            await self.send_error(error)
        except Exception:
            log.exception("socket_failed", extra={"code": "internal"})
            await self.send_error(ProtocolError("internal", INTERNAL))

    async def on_ping(self, message: Ping) -> None:
        await self.send_message(Pong(t=message.t))

    async def send_error(self, error: ProtocolError) -> None:
        metrics.refused(error.code)
        labels = {"ref": error.ref, "request_id": error.request_id}
        frame = ErrorFrame(code=error.code, message=str(error), retry_after=error.retry_after, **labels)
        await self.send_message(frame)

    async def send_message(self, message: ServerModel) -> None:
        """Send what belongs to no answer, once the client has read enough of what it was sent."""
        await self.flow.until_room()
        await self.send_text(message.frame())

    async def send_text(self, frame: str) -> None:
        if self._open:
            await self.send(text_data=frame)

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` beside the socket, in place of an older task of this name. It ends with the socket."""
        self._work.start(name, self._guarded(work))

    def finish(self, received: Any, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, which a message asked for, beside the socket, to its end though the socket may close."""
        self._work.finish(self._guarded(self._labelled(received, work)))

    async def close(self, code: int | None = None, reason: str | None = None) -> None:
        """Nothing is sent after this, and nobody follows for this client any more."""
        if not self._open:
            return
        self._open, self._code = False, code
        self.flow.close()
        if code != RESTARTS:  # else the process ends, and those requests have not lost their reader
            self._work.cancel()
        await super().close(code, reason)

    async def end_of_rights(self) -> None:
        await self.close(UNAUTHORIZED, "you have signed out, or your rights or your key have changed")

    @property
    def is_busy(self) -> bool:
        """Whether something that has an end is under way here."""
        return False

    async def announce_end(self) -> None:
        await self.send_text(Draining().frame())

    async def dismiss(self) -> None:
        await self.close(RESTARTS, "this server stops; connect again and resume your requests")

    async def _stopped_reading(self) -> None:
        log.info("reader_stuck: user %s", self.user.pk)
        await self.close(LATER, STOPPED_READING)

    async def websocket_disconnect(self, message: Any) -> None:
        self._open, self._code = False, self._code or message.get("code")
        self.flow.close()
        if self._code == RESTARTS and get_drain().is_draining:
            raise StopConsumer
        await self._work.end()
        raise StopConsumer


async def _limits(gateway: Gateway) -> Limits:
    return Limits(max_model_len=await longest_request(gateway.client))
