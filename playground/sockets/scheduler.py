"""/ws/scheduler/: the live picture of the batch, for staff.

After `hello` a `snapshot`, then `iterations` frames. Newest wins: a viewer that falls behind misses older records and
never slows the engine or another viewer. Records carry (epoch, n), so a viewer sees what it missed. When an engine
comes, goes, or changes its state, a new snapshot says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson

from inference.serving.client import UNREACHABLE
from inference.serving.messages import EngineStatus
from playground.gateway import get_gateway
from playground.sockets.base import FORBIDDEN, Socket

FRAME_INTERVAL = 0.05  # seconds: 20 frames a second at most
STATUS_INTERVAL = 2.0
HISTORY = 300  # records of each engine in a snapshot, as far as they fit
RECORDS_BYTES = 512 * 1024  # of the records in a frame; Daphne drops a frame of more than 1 MiB

Record = dict[str, Any]


class SchedulerSocket(Socket):
    def refusal(self) -> int | None:
        return super().refusal() or (None if self.user.is_staff else FORBIDDEN)

    async def opened(self) -> None:
        await super().opened()
        self._last: dict[str, tuple[int, int]] = {}  # (epoch, n) of the newest record sent, by engine
        self._engines: list[tuple[str, str, int]] | None = None
        self.start("engines", self._watch_engines())

    async def _watch_engines(self) -> None:
        """Snapshots, now and whenever the set of engines or the state of one changes; then records."""
        while True:
            try:
                engines = await get_gateway().client.engines()
            except UNREACHABLE:
                engines = []
            seen = [(engine.name, engine.state, engine.epoch) for engine in engines]
            if seen != self._engines:
                first = self._engines is None
                await self._send_snapshot(engines)
                self._engines = seen
                if first:
                    self.start("iterations", self._watch_iterations())
            await asyncio.sleep(STATUS_INTERVAL)

    async def _send_snapshot(self, engines: Sequence[EngineStatus]) -> None:
        client = get_gateway().client
        described = []
        for engine in engines:
            try:
                history = await client.newest_iterations(engine.name, HISTORY)
                records = newest_within(history, RECORDS_BYTES // len(engines))
            except UNREACHABLE:
                records = []
            self._note(engine.name, records)
            described.append(describe(engine, records))
        await self._send({"type": "snapshot", "engines": described})

    async def _watch_iterations(self) -> None:
        async for engine, records in get_gateway().client.watch_iterations():
            new = newest_within(self._note(engine, records), RECORDS_BYTES)
            if new:
                await self._send({"type": "iterations", "engine": engine, "records": new})
            await asyncio.sleep(FRAME_INTERVAL)

    def _note(self, engine: str, records: Sequence[Record]) -> list[Record]:
        """The records that this viewer has not been sent; from here on it has."""
        last = self._last.get(engine, (-1, -1))
        new = [record for record in records if (record["epoch"], record["n"]) > last]
        if new:
            self._last[engine] = (new[-1]["epoch"], new[-1]["n"])
        return new

    async def _send(self, frame: dict[str, Any]) -> None:
        await self.send_text(orjson.dumps(frame).decode())


def newest_within(records: Sequence[Record], limit: int) -> list[Record]:
    """The newest records whose JSON fits into `limit` bytes, oldest first; the newest one in any case."""
    size, start = 0, len(records)
    while start > 0:
        size += len(orjson.dumps(records[start - 1]))
        if size > limit and start < len(records):
            break
        start -= 1
    return list(records[start:])


def describe(engine: EngineStatus, records: Sequence[Record]) -> dict[str, Any]:
    """An engine as a snapshot has it. Who runs and waits comes from its newest record, as far as that still holds."""
    newest = records[-1] if records and engine.busy else None
    gone = {item["request_id"] for item in newest["finished"]} | set(newest["preempted"]) if newest else set()
    return {
        "engine": engine.name,
        "state": engine.state,
        "busy": engine.busy,
        "model": engine.model,
        "epoch": engine.epoch,
        "settings": engine.settings,
        "kv": records[-1]["kv"] if newest else engine.kv,
        "running": [row for row in newest["rows"] if row["request_id"] not in gone] if newest else [],
        "waiting": newest["waiting"] if newest else [],
        "waiting_total": newest["waiting_total"] if newest else engine.waiting,
        "records": list(records),
    }
