"""Outputs on their way from the step thread to the broker: logs, the ledger, counts, news for those who wait.

Knows: in which order they go out, what is sent again. Must not know: torch, where requests come from, when a broker
that is away is tried again. `publish` and `tell` are the step thread's; all else runs in the broker thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Any

import orjson

from inference.serving.broker_engine import EngineBroker
from inference.serving.ledger_store import LedgerStore
from inference.serving.logs import Outgoing
from inference.serving.messages import Finish, Queued
from inference.serving.totals import EngineTotals

PUBLISH_AT_ONCE = 1024  # events in one call, roughly: a step is never split
MOST_STEPS_BEHIND = 2000  # then the step thread waits
MOST_NEWS = 4096  # of places in line; then the oldest are dropped


class Outbox:
    """settled: told of events that are out, and of the claims (by token) among them that hold no more.  totals: told of
    each iteration, and of outputs that are out.  flush: brings totals into the broker."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        broker: EngineBroker,
        engine: str,
        ledger: LedgerStore,
        settled: Callable[[Sequence[Outgoing], set[str]], None],
        totals: EngineTotals,
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        self._loop, self._broker, self._engine, self._ledger = loop, broker, engine, ledger
        self._settled, self._totals, self._flush = settled, totals, flush
        self._counted = 0  # of the oldest steps: those whose iteration is counted, though they are not out yet
        self._steps: deque[tuple[Sequence[Outgoing], Any]] = deque()
        self._news: deque[Queued] = deque(maxlen=MOST_NEWS)
        self._wake = asyncio.Event()
        self._room = threading.Event()
        self._room.set()

    # Called from the step thread

    def publish(self, items: Sequence[Outgoing], record: Any = None) -> None:
        """Hand over a step's events and its ledger record. Waits only where far too many are under way already."""
        self._room.wait()
        self._steps.append((items, record))
        if len(self._steps) >= MOST_STEPS_BEHIND:
            self._room.clear()
        self._loop.call_soon_threadsafe(self._wake.set)

    def tell(self, news: Sequence[Queued]) -> None:
        """Hand over news for those who wait. They are lost where the broker is away: newer ones come."""
        self._news.extend(news)
        self._loop.call_soon_threadsafe(self._wake.set)

    # In the broker thread

    def put(self, item: Outgoing) -> None:
        """One more event, which no step made."""
        self._steps.append(([item], None))
        self._wake.set()

    async def send(self) -> None:
        """All that is there, once there is something."""
        await self._wake.wait()
        self._wake.clear()
        news = [self._news.popleft() for _ in range(len(self._news))]
        if news:  # before the outputs: who waited then may have a token by now
            await self._broker.tell(news)
        await self.empty()

    async def empty(self) -> None:
        while self._steps:
            await self._send_some()

    async def _send_some(self) -> None:
        """Send whole steps, oldest first, as many as fit one call. They leave the outbox only when they are out."""
        items: list[Outgoing] = []
        steps = 0
        for i in range(len(self._steps)):  # the step thread may append meanwhile
            step_items = self._steps[i][0]
            if steps and len(items) + len(step_items) > PUBLISH_AT_ONCE:
                break
            items += step_items
            steps += 1
        records = self._count(steps)
        try:
            if any(isinstance(item.event, Finish) for item in items):
                await self._flush()
            prompts = self._totals.wordless
            refused = await self._broker.publish(items, self._engine, prompts) if items else set()
            lines = [orjson.dumps(record) for record in records]
            if lines:
                await self._broker.append_ledger(self._engine, lines)
        except BaseException:
            self._wake.set()  # the same once more, later
            raise
        for _ in range(steps):
            self._totals.wrote(self._steps.popleft()[0], refused)
        self._counted -= steps
        for record, line in zip(records, lines, strict=True):
            self._ledger.add(record, line)
        self._room.set()
        self._settled(items, refused)

    def _count(self, steps: int) -> list[Any]:
        """The records of so many steps, each counted once, however often it is sent."""
        records = [record for _, record in islice(self._steps, steps)]
        for record in records[self._counted :]:
            if record is not None:
                self._totals.iteration(record)
        self._counted = max(self._counted, steps)
        return [record for record in records if record is not None]
