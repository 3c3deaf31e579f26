"""Iteration records as they come, for all who watch in this process: read once, newest win.

Knows: the streams of records, which engines live. Must not know: sockets, what is kept of older records.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import orjson

from inference.serving.broker import UNREACHABLE, ResponseError, end_tasks
from inference.serving.broker_web import WebBroker

BACK_OFF = (0.05, 1.0)  # seconds between tries while the broker is away: first, most
RECORDS_PENDING = 128  # iteration records a slow watcher may have pending, newest win
READ_EVERY = 0.04  # seconds: a read takes what has come meanwhile, so that a fast engine costs no read an iteration
PACE = 0.01  # seconds for each watcher: the more there are, the less often each is served, with more at a time
BEFORE = 2000  # ms
LOOK_EVERY = 0.5  # seconds between looks for engines

Record = dict[str, Any]


class _Pending:
    """Newest iteration records for one watcher, by engine."""

    def __init__(self) -> None:
        self.records: dict[str, deque[Record]] = defaultdict(lambda: deque(maxlen=RECORDS_PENDING))
        self.arrived = asyncio.Event()

    def take(self) -> dict[str, deque[Record]]:
        self.arrived.clear()
        taken, self.records = self.records, _Pending().records
        return taken


class LedgerFeed:
    """Reads while somebody watches. A broker that is away is waited for."""

    def __init__(self, broker: WebBroker) -> None:
        self._broker = broker
        self._watchers: set[_Pending] = set()
        self._task: asyncio.Task[None] | None = None

    async def watch(self) -> AsyncGenerator[tuple[str, list[Record]]]:
        """Records as JSON data, by engine, newest last; all watchers get the same objects. A slow one misses some."""
        pending = _Pending()
        self._watchers.add(pending)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._read(), name="client-ledgers")
        try:
            while True:
                await pending.arrived.wait()
                for engine, newest in pending.take().items():
                    yield engine, list(newest)
                await asyncio.sleep(PACE * len(self._watchers))
        finally:
            self._watchers.discard(pending)

    async def close(self) -> None:
        await end_tasks([self._task] if self._task is not None else [])

    async def _read(self) -> None:
        cursors: dict[str, str] = {}
        looked = 0.0
        pause, most = BACK_OFF
        while self._watchers:
            try:
                if not cursors or time.monotonic() - looked > LOOK_EVERY:
                    cursors = await self._look(cursors)
                    looked = time.monotonic()
                found = await self._broker.read_ledgers(cursors) if cursors else {}
                pause = BACK_OFF[0]
            except (*UNREACHABLE, ResponseError):  # the feed's reader says so
                await asyncio.sleep(pause)
                pause = min(pause * 2, most)
                continue
            for engine, (cursor, records) in found.items():
                cursors[engine] = cursor
                self._spread(engine, [orjson.loads(record) for record in records])
            await asyncio.sleep(READ_EVERY if cursors else LOOK_EVERY)

    async def _look(self, cursors: dict[str, str]) -> dict[str, str]:
        """Where to read on, for each engine that lives; of a new one from a little before its newest record, so that
        what comes between a look at its history and this is not missed."""
        names = {status.name for status in (await self._broker.statuses()).values()}
        return {name: cursors.get(name) or _a_little_before(await self._broker.ledger_end(name)) for name in names}

    def _spread(self, engine: str, records: Sequence[Record]) -> None:
        for watcher in self._watchers:
            watcher.records[engine].extend(records)
            watcher.arrived.set()


def _a_little_before(entry_id: str) -> str:
    """A stream's ids begin with the milliseconds of the server's clock."""
    return f"{max(0, int(entry_id.partition('-')[0]) - BEFORE)}-0"
