"""/ws/chat/ and /ws/v1/: ask for answers and stream them, several at once on one socket.

Knows: the protocol and the gateway. Must not know: the broker, the engine.
Each answer is streamed by a task of its own, so that a `cancel` is heard at once. A request that is followed elsewhere,
or that is over, can be resumed by its owner from any seq.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

from django.db import DatabaseError

from inference.config import SamplingParams
from inference.scheduling.request import RequestRefused
from inference.serving.client import News
from inference.serving.messages import Delta
from inference.serving.messages import Finish as End
from inference.serving.messages import Queued as Place
from playground.conversations import as_uuid, conversations_of, touch
from playground.gateway import get_gateway
from playground.models import Conversation, InferenceRequest
from playground.sockets.base import INTERNAL, Socket, database
from playground.sockets.protocol import (
    Accepted,
    Ack,
    Cancel,
    DeltaFrame,
    ErrorFrame,
    Finished,
    Generate,
    ProtocolError,
    Queued,
    Resume,
    ServerModel,
    TokenLogprobs,
    Usage,
)

NO_REQUEST = "there is no such request"
log = logging.getLogger(__name__)


class ChatSocket(Socket):
    async def opened(self) -> None:
        self._accepting = asyncio.Lock()  # in the order in which they came
        await super().opened()

    @property
    def is_busy(self) -> bool:
        return self._work.is_busy or self.flow.is_busy

    async def on_generate(self, message: Generate) -> None:
        """Accepted beside the socket: the next frame is read at once, so that no time of its request is missing."""
        received_at = time.time()
        params = message.sampling_params()
        self._check(message, params)
        self.finish(message, self._accept(message, params, received_at))

    async def _accept(self, message: Generate, params: SamplingParams, received_at: float) -> None:
        async with self._accepting:
            requests, conversation = await self._submit(message, params, received_at)
            for request in requests:
                request_id = str(request.pk)
                await self.send_message(Accepted(ref=message.ref, request_id=request_id, position=request.position))
                if self._open:  # else nobody follows it, and it is given up after a grace
                    self.start(request_id, self._stream(request_id, 0, request))
        if conversation is not None:
            await database(touch)(conversation, requests[0].asked)

    async def _submit(
        self, message: Generate, params: SamplingParams, received_at: float
    ) -> tuple[list[InferenceRequest], Conversation | None]:
        conversation = await self._conversation(message.conversation)
        try:
            requests = await get_gateway().submit_all(
                self.user,
                messages=message.message_dicts(),
                prompt=message.prompt,
                params=params,
                received_at=received_at,
                conversation=conversation,
                ref=message.ref or "",
                key=self.caller.key,
            )
        except RequestRefused as error:
            raise ProtocolError(error.code, str(error), retry_after=error.retry_after) from None
        except DatabaseError:
            log.exception("accept_failed", extra={"code": "engine_unavailable"})
            words = "the request could not be stored just now, so it was not accepted; send it again later"
            raise ProtocolError("engine_unavailable", words) from None
        return requests, conversation

    def _check(self, message: Generate, params: SamplingParams) -> None:
        """What parameters alone don't tell."""
        if params.n > 1 and message.conversation is not None:
            words = f"n is {params.n}; in a conversation each turn has one answer, so n must be 1"
            raise ProtocolError("bad_params", words, ref=message.ref)
        if params.priority > 0 and not self.user.is_staff:
            words = f"priority is {params.priority}; only staff may go before others, so at most 0 is allowed"
            raise ProtocolError("forbidden", words, ref=message.ref)

    async def on_cancel(self, message: Cancel) -> None:
        request_id = _canonical(message.request_id)
        if not await get_gateway().cancel(self.user, request_id):
            raise ProtocolError("not_found", NO_REQUEST, request_id=request_id)

    async def on_resume(self, message: Resume) -> None:
        request_id = _canonical(message.request_id)
        self.flow.forget(request_id)
        self.start(request_id, self._stream(request_id, message.after_seq))

    async def on_ack(self, message: Ack) -> None:
        self.flow.acknowledge(message.request_id, message.seq)

    async def _conversation(self, text: str | None) -> Conversation | None:
        if text is None:
            return None
        pk = as_uuid(text)
        found = await conversations_of(self.user).filter(pk=pk).afirst() if pk else None
        if found is None:
            raise ProtocolError("not_found", "there is no such conversation")
        return found

    async def _stream(self, request_id: str, after_seq: int, row: InferenceRequest | None = None) -> None:
        try:
            async with aclosing(get_gateway().follow(self.user, request_id, after_seq, row)) as events:
                async for event in events:
                    await self._send_event(event)
        except RequestRefused as error:
            raise ProtocolError(error.code, str(error), request_id=request_id) from None
        except Exception:
            log.exception("stream_failed", extra={"code": "internal"})
            raise ProtocolError("internal", INTERNAL, request_id=request_id) from None

    async def _send_event(self, event: News) -> None:
        for frame in _frames(event):
            await self.flow.put(frame, event.request_id)


def _frames(event: News) -> Iterator[ServerModel]:
    if isinstance(event, Place):
        yield Queued(request_id=event.request_id, position=event.position, reason=event.reason, eta_ms=event.eta_ms)
    elif isinstance(event, Delta):
        yield DeltaFrame(
            request_id=event.request_id,
            seq=event.seq,
            text=event.text,
            tokens=len(event.token_ids),
            iteration=event.iteration,
            logprobs=_logprobs(event),
        )
    else:
        if event.error_code:
            yield ErrorFrame(code=event.error_code, message=event.error_message, request_id=event.request_id)
        yield _finished(event)


def _canonical(request_id: str) -> str:
    """Ids are the server's and have one form; whatever else is sent names no request."""
    pk = as_uuid(request_id)
    if pk is None:
        raise ProtocolError("not_found", NO_REQUEST, request_id=request_id)
    return str(pk)


def _finished(event: End) -> Finished:
    usage: dict[str, Any] = {
        name: getattr(event, name) for name in ("prompt_tokens", "completion_tokens", "cached_tokens")
    }
    return Finished(
        request_id=event.request_id,
        seq=event.seq,
        finish_reason=event.finish_reason,
        usage=Usage(**usage),
        receipt=event.receipt,
        logprobs=_logprobs(event),
    )


def _logprobs(event: Delta | End) -> list[TokenLogprobs] | None:
    return [TokenLogprobs(**token) for token in event.logprobs] if event.logprobs else None
