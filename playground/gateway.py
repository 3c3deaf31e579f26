"""Between the sockets and the engines: accepted means durable, and every accepted request gets one final state.

Knows: the order of row and broker (R1 of the promises: first the row is committed, then the broker is told), and who
follows what. Must not know: sockets, HTTP, torch, Redis commands. row_writer.py writes what becomes of a request,
sweeper.py mends what was lost.
One Gateway in each web process, on its one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from channels.db import database_sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError

from inference.config import SEED_LIMIT, SamplingParams
from inference.scheduling.request import RequestRefused
from inference.serving.client import UNREACHABLE, EngineClient, Event, News, end_tasks
from inference.serving.messages import Delta, Finish
from playground import journal, metrics, retention, rows
from playground.access.callers import Caller
from playground.access.limits import Limiter, Quotas
from playground.drain import get_drain
from playground.followers import Followers
from playground.metrics.beat import Beat
from playground.models import ApiKey, IdempotentCall, InferenceRequest
from playground.pace import Pace
from playground.row_writer import RowWriter
from playground.sweeper import Sweeper

log = logging.getLogger("batchscope.gateway")

UNFOLLOWED_GRACE = 5.0  # seconds at least until a request that nobody has begun to follow is given up


class Gateway:
    """Submit, cancel, follow. Raises RequestRefused with a code of the contract."""

    def __init__(
        self,
        redis_url: str,
        *,
        queue_limit: int,
        resume_grace: float,
        conversation_grace: float,
        ledger_folder: Path | None = None,
        user_queue_limit: int | None = None,
        quotas: Quotas | None = None,
        prompt_days: float | None = None,
        hang_timeout: float = 10.0,
    ) -> None:
        self.client = EngineClient(redis_url, ledger_folder)
        self.limiter = Limiter(redis_url, quotas)
        self.beat = Beat(self.client, metrics.tally, metrics.sockets, hang_timeout)
        self._queue_limit, self._user_queue_limit = queue_limit, user_queue_limit
        self._pace = Pace()
        self._prompt_days = prompt_days
        self._graces = (resume_grace, conversation_grace)
        self._followers = Followers(self._count_followers, self._give_up)
        self._writer = RowWriter(self.client, self._count)
        self._sweeper = Sweeper(self.client, self._writer)
        self._tasks: list[asyncio.Task[None]] = []
        self.client.on_event(self._writer.on_event)
        self.client.on_reconnect(self._sweeper.now.set)

    async def ensure_started(self) -> None:
        """Start the background work on the running loop. Any number of calls; a broker that is away is no error."""
        if self._tasks:
            return
        await self.client.start()
        works = {"sweeper": self._sweeper.run(), "writer": self._writer.run(), "beat": self.beat.run()}
        if self._prompt_days is not None:
            works["forgetter"] = retention.forget_hourly(self._prompt_days)
        for name, work in works.items():
            # A context of their own: asgiref ties database work to the request that started it, and ends with that.
            self._tasks.append(asyncio.create_task(work, name=f"gateway-{name}", context=contextvars.Context()))

    async def close(self) -> None:
        await end_tasks(self._tasks)
        await self._followers.close()
        await self.limiter.close()
        await self.client.close()

    async def submit(self, user: User, *, params: SamplingParams, **fields: Any) -> InferenceRequest:
        """Accept a request: when this returns, it is durable. `position` on the row: how many wait before it.

        fields: of the row: one of messages, prompt and prompt_ids; conversation, ref.  Follow it then; a request that
        nobody follows is given up after a grace. Raises RequestRefused (rate_limited, queue_full, draining).
        """
        [row] = await self.submit_all(user, params=replace(params, n=1), **fields)
        return row

    async def submit_all(
        self,
        user: User,
        *,
        params: SamplingParams,
        received_at: float = 0.0,
        key: ApiKey | None = None,
        asked: Sequence[Mapping[str, Any]] = ({},),
        call: IdempotentCall | None = None,
        **fields: Any,
    ) -> list[InferenceRequest]:
        """Accept the `params.n` requests that one stands for, all or none. received_at: Unix seconds, when this was
        asked for.  key: that it came with.  asked: where several things are asked at once, the row's fields of each.
        call: recorded together with them; raises MadeAlready if it was made before.  fields: see `submit`."""
        await self.ensure_started()
        caller = Caller(user, key)
        family = [
            InferenceRequest(
                owner=user,
                key=key,
                params={k: v for k, v in one.to_mapping().items() if k != "seed"},
                seed=one.seed,
                **fields,
                **own,
            )
            for own in asked
            for one in _seeded(params).siblings()
        ]
        with journal.refusals(user.pk, len(family)):
            get_drain().check()
            await self.limiter.take(caller, len(family))
            try:
                await database_sync_to_async(rows.create)(family, self._room_for(caller), call)
            except Exception:
                await self.limiter.give_back(caller, len(family))
                raise
        journal.accepted(family)
        for row in family:
            row.received_at = received_at
            await self._hand_on(row)
        return family

    def _room_for(self, caller: Caller) -> rows.Room:
        most = self._user_queue_limit if caller.is_limited else None
        return rows.Room(self._queue_limit, most, self._pace.seconds_each)

    async def _hand_on(self, row: InferenceRequest) -> None:
        request_id = str(row.pk)
        self._writer.watch(request_id)
        if row.replay_of_id is None:  # a replay has no reader: its row is looked at, later
            self._followers.arm(request_id, max(UNFOLLOWED_GRACE, self._grace(row)))
        try:
            await self.client.submit(rows.submission_of(row))
        except UNREACHABLE as error:
            log.warning("submit_delayed: %s; the sweeper puts it back", type(error).__name__)

    async def cancel(self, user: User, request_id: str) -> bool:
        """Ask for the end of a request; its finish follows. False where `user` has none of that id."""
        row = await database_sync_to_async(rows.owned)(user, request_id)
        if row is None:
            return False
        if not row.is_final:
            await self._cancel(str(row.pk))
        return True

    async def cancel_any(self, request_id: str) -> None:
        """As `cancel`, of anybody's request, for a caller who has the right to. One that is over stays as it is."""
        await self.ensure_started()
        await self._cancel(request_id)

    async def follow(
        self, user: User, request_id: str, after_seq: int = 0, row: InferenceRequest | None = None
    ) -> AsyncGenerator[News]:
        """Deltas after `after_seq`, then the finish, by which time the row has its final state; before the first delta,
        where it stands in line. The finish is to be sent at once: its receipt ends here. Whoever reads it again later
        gets that receipt; one whose end nobody heard has no `deliver`.
        row: as `submit` has just given it, so that its first words don't wait for the database.

        Raises RequestRefused(not_found). Close the iterator (contextlib.aclosing) when the reader has gone: once the
        last one has, the request is cancelled after a grace.
        """
        await self.ensure_started()
        row = row or await database_sync_to_async(rows.owned)(user, request_id)
        if row is None:
            raise RequestRefused("not_found", "there is no such request")
        request_id = str(row.pk)
        if row.is_final and not await self._log_exists(request_id):
            for event in _from_row(row, after_seq):
                yield event
            return
        final = asyncio.Event() if row.is_final else self._writer.watch(request_id)
        grace: float | None = self._grace(row)
        first_told = 0.0  # Unix seconds
        self._followers.attach(request_id)
        try:
            async with contextlib.aclosing(self.client.follow(request_id, after_seq)) as events:
                async for event in events:
                    if isinstance(event, Finish):
                        grace = None
                        event = await self._end_of(row, event, final, first_told)
                    yield event
                    if isinstance(event, Delta) and event.seq == 1 and row.received_at:  # who asked has it now
                        first_told = time.time()
                        journal.first_delta(request_id, first_told - row.received_at)
        finally:
            self._followers.detach(request_id, grace)

    # Cancelling

    def _grace(self, row: InferenceRequest) -> float:
        resume, conversation = self._graces
        return resume if row.conversation_id is None else conversation

    async def _count_followers(self, request_id: str, change: int) -> int:
        """How many there are over all web processes; while nobody can be asked, those of this process decide."""
        try:
            return await self.client.broker.follow(request_id, change)
        except UNREACHABLE:
            return 0

    async def _give_up(self, request_id: str) -> None:
        if self._writer.is_watched(request_id):
            await self._cancel(request_id)

    async def _cancel(self, request_id: str) -> None:
        journal.cancel_asked(request_id)
        try:
            await self.client.cancel(request_id)
        except UNREACHABLE:
            log.warning("cancel_delayed: the broker is away; the sweeper sees to it")
        try:
            await database_sync_to_async(rows.ask_cancel)(request_id)
        except DatabaseError as error:
            log.warning("database_error: cancel not recorded, %s", error)

    # The end of an answer

    async def _end_of(self, row: InferenceRequest, finish: Finish, final: asyncio.Event, first_told: float) -> Finish:
        if row.is_final:
            return replace(finish, receipt=row.receipt or finish.receipt)
        await self._writer.until_final(finish.request_id, final)
        ttft = 1000 * max(0.0, first_told - row.received_at) if first_told else None
        finish = finish.handed_over(time.time(), row.created_at.timestamp(), ttft)
        self._writer.correct(finish.request_id, finish.receipt)
        return finish

    async def _count(self, ended: list[rows.Ended]) -> None:
        """Of what one transaction has ended, so that nothing is counted twice."""
        self._pace.note(len(ended))
        journal.ended(ended)
        for one in ended:
            finish = one.outcome.finish
            await self.limiter.used(one.owner_id, one.key_id, finish.prompt_tokens + finish.completion_tokens)

    async def _log_exists(self, request_id: str) -> bool:
        try:
            return await self.client.exists(request_id)
        except UNREACHABLE:
            return False


def _seeded(params: SamplingParams) -> SamplingParams:
    return params if params.seed is not None else replace(params, seed=secrets.randbelow(SEED_LIMIT))


def _from_row(row: InferenceRequest, after_seq: int) -> list[Event]:
    """A finished answer whose log is not kept any more, in one piece."""
    if after_seq > 0 and row.answer:
        raise RequestRefused("not_found", "this answer's parts are not kept any more; read it from its conversation")
    finish = Finish(
        str(row.pk),
        2 if row.answer else 1,
        row.finish_reason,
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
        cached_tokens=row.cached_tokens,
        error_code=row.error_code,
        error_message=row.error_message,
        receipt=row.receipt,
        engine=row.engine,
    )
    return [*([Delta(finish.request_id, 1, row.answer, [], 0)] if row.answer else []), finish]


@lru_cache(maxsize=1)
def get_gateway() -> Gateway:
    """This process's gateway. Raises ImproperlyConfigured where no broker is set."""
    config = settings.BATCHSCOPE
    if not config.redis_url:
        raise ImproperlyConfigured("BATCHSCOPE_REDIS_URL is not set; `manage.py serve` starts a broker of its own")
    return Gateway(
        config.redis_url,
        queue_limit=config.queue_limit,
        resume_grace=config.resume_grace,
        conversation_grace=config.conversation_grace,
        ledger_folder=config.ledger_folder,
        user_queue_limit=config.user_queue_limit,
        quotas=Quotas.of(config),
        prompt_days=config.prompt_days,
        hang_timeout=config.hang_timeout,
    )
