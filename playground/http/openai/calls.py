"""One HTTP call and the requests that it stands for: accepted, followed together, given up when the caller has gone.

Knows: the gateway, and what a call asks of it. Must not know: HTTP, the shapes of answers.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import lru_cache

from channels.db import database_sync_to_async
from django.contrib.auth.models import User
from django.db import DatabaseError

from inference.config import SamplingParams
from inference.serving.client import end_tasks
from inference.serving.messages import Delta, Finish, Queued
from playground import idempotency
from playground.access.callers import GENERATE, Caller
from playground.access.live_rights import standing_of
from playground.drain import get_drain
from playground.gateway import get_gateway
from playground.http.openai.errors import CallError
from playground.http.openai.requests import MAX_CHOICES, Sampling
from playground.models import IdempotentCall, InferenceRequest
from playground.sockets.registry import Guests

AT_ONCE = 16  # events of a call that wait to be read
TRIES = 3
NO_LIMIT = 1 << 30
log = logging.getLogger("batchscope.openai")
_leaving: set[asyncio.Task[None]] = set()  # a loop itself holds its tasks only weakly


class Call:
    """rows: of each prompt its n requests, one prompt after the other.  is_kept: the caller may come again for the
    same answer, so that nothing is given up at once."""

    def __init__(self, caller: Caller, rows: Sequence[InferenceRequest], n: int, is_kept: bool) -> None:
        self.caller, self.rows, self.n, self.is_kept = caller, rows, n, is_kept
        self.standing = standing_of(caller, GENERATE)
        self._unfinished = {str(row.pk) for row in rows}
        self._arrived: asyncio.Queue[tuple[int, Delta | Finish | Exception]] = asyncio.Queue(AT_ONCE)

    @property
    def request_id(self) -> str:
        """The first one's: the call is named after it."""
        return str(self.rows[0].pk)

    async def events(self) -> AsyncGenerator[tuple[int, Delta | Finish]]:
        """Deltas and finishes of all requests, each with its request's place. Close it when the caller has gone: what
        is not finished then is cancelled.

        Each request is followed by a task, one alone too: a cancellation that comes together with a word of the broker
        can get lost there (see end_tasks), and must reach whoever reads this.
        """
        tasks = [asyncio.create_task(self._follow(place)) for place in range(len(self.rows))]
        get_open_calls().admit(self)
        try:
            while self._unfinished:
                place, event = await self._arrived.get()
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, Finish):
                    self._unfinished.discard(event.request_id)
                yield place, event
        finally:
            get_open_calls().leave(self)
            self.leave()
            await end_tasks(tasks)

    def leave(self) -> None:
        """Nobody waits for the rest any more."""
        if self._unfinished and not self.is_kept:
            # A task of its own: the caller's may be cancelled; and a context of its own, since asgiref ties database
            # work to the request that started it.
            work = _cancel(self.caller.user, sorted(self._unfinished))
            task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
            _leaving.add(task)
            task.add_done_callback(_leaving.discard)
        self._unfinished = set()

    async def _follow(self, place: int) -> None:
        row = self.rows[place]
        try:
            async with aclosing(get_gateway().follow(self.caller.user, str(row.pk), 0, row)) as events:
                async for event in events:
                    if not isinstance(event, Queued):
                        await self._arrived.put((place, event))
        except Exception as error:
            await self._arrived.put((place, error))

    # As a guest (playground.sockets.registry)

    @property
    def is_busy(self) -> bool:
        return True

    async def end_of_rights(self) -> None:
        self._end(CallError("unauthorized", "this API key, or its right to this, ended in the middle of the answer"))

    async def announce_end(self) -> None:
        """There is no way to tell it."""

    async def dismiss(self) -> None:
        self._end(CallError("draining", "this server is about to end; send the call again in a few seconds"))

    def _end(self, error: CallError) -> None:
        """What has not been read by now is not read any more."""
        while not self._arrived.empty():
            self._arrived.get_nowait()
        self._arrived.put_nowait((0, error))


@lru_cache(maxsize=1)
def get_open_calls() -> Guests:
    """Calls of this process that are being answered: they end with the rights of who made them, as sockets do."""
    return Guests(NO_LIMIT, NO_LIMIT)


async def _cancel(user: User, request_ids: Sequence[str]) -> None:
    for request_id in request_ids:
        try:
            await get_gateway().cancel(user, request_id)
        except DatabaseError as error:  # nobody follows it: it is given up after a grace
            log.warning("cancel_delayed: %s", type(error).__name__)


async def accept(caller: Caller, body: Sampling, received_at: float, key: str | None, path: str) -> Call:
    """When this returns, what the call asks for is durable. key: of its sender's choice (see playground.idempotency).

    Raises CallError, ParameterError, RequestRefused.
    """
    get_drain().check()  # an answer that exists already would be no new work, and still keep this process here
    params, asked = body.sampling_params(), body.asked()
    check(caller, params, len(asked))
    work = asyncio.create_task(_accept(caller, params, asked, received_at, _call_of(caller, key, body, path)))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        work.add_done_callback(_left_early)
        raise


def _left_early(work: asyncio.Task[Call]) -> None:
    """The caller went while its requests were being stored."""
    if not work.cancelled() and work.exception() is None:
        work.result().leave()


def check(caller: Caller, params: SamplingParams, prompts: int) -> None:
    """What parameters alone don't tell. Raises CallError."""
    if prompts * params.n > MAX_CHOICES:
        words = f"{prompts} prompts with n = {params.n} make {prompts * params.n} answers; at most {MAX_CHOICES} fit"
        raise CallError("bad_params", words, param="prompt")
    if params.priority > 0 and not caller.user.is_staff:
        words = f"priority is {params.priority}; only staff may go before others, so at most 0 is allowed"
        raise CallError("forbidden", words, param="priority")


def _call_of(caller: Caller, key: str | None, body: Sampling, path: str) -> IdempotentCall | None:
    if key is None or caller.key is None:
        return None
    said = body.model_dump(mode="json", exclude_unset=True)
    return IdempotentCall(api_key=caller.key, key=key, body_hash=idempotency.hash_of(path, said))


async def _accept(
    caller: Caller,
    params: SamplingParams,
    asked: list[dict[str, object]],
    received_at: float,
    call: IdempotentCall | None,
) -> Call:
    for _ in range(TRIES):
        if call is not None and (rows := await database_sync_to_async(idempotency.earlier)(call)):
            return Call(caller, rows, params.n, is_kept=True)
        try:
            rows = await get_gateway().submit_all(
                caller.user, params=params, asked=asked, key=caller.key, received_at=received_at, call=call
            )
        except idempotency.MadeAlready:
            continue
        return Call(caller, rows, params.n, is_kept=call is not None)
    raise CallError("conflict", "other calls with this Idempotency-Key are being made just now; send it again later")
