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
from playground.sockets.protocol import MAX_FRAME_BYTES

FRAME_INTERVAL = 0.05  # seconds: 20 frames a second at most
STATUS_INTERVAL = 2.0
HISTORY = 300  # records of each engine that a new viewer gets
RECORDS_BYTES = MAX_FRAME_BYTES // 2  # of the records in a frame: the server can send no frame over MAX_FRAME_BYTES

Record = dict[str, Any]


class SchedulerSocket(Socket):
    def refusal(self) -> int | None:
        return super().refusal() or (None if self.user.is_staff else FORBIDDEN)

    async def opened(self) -> None:
        await super().opened()
        self._last: dict[str, tuple[int, int]] = {}  # (epoch, n) of the newest record sent, by engine
        self._engines: list[tuple[Any, ...]] | None = None
        self.start("engines", self._watch_engines())

    async def _watch_engines(self) -> None:
        """Snapshots, now and whenever the set of engines or the state or policy of one changes; then records."""
        while True:
            try:
                engines = await get_gateway().client.engines()
            except UNREACHABLE:
                engines = []
            seen = [(engine.name, engine.state, engine.epoch, engine.settings.get("policy")) for engine in engines]
            if seen != self._engines:
                first = self._engines is None
                await self._send_snapshot(engines)
                self._engines = seen
                if first:
                    self.start("iterations", self._watch_iterations())
            await asyncio.sleep(STATUS_INTERVAL)

    async def _send_snapshot(self, engines: Sequence[EngineStatus]) -> None:
        """The snapshot; of a history that is too long for one frame, the rest in `iterations` frames."""
        client = get_gateway().client
        described, later = [], []
        for engine in engines:
            try:
                records = await client.newest_iterations(engine.name, HISTORY)
            except UNREACHABLE:
                records = []
            self._note(engine.name, records)
            first, *rest = in_frames(records, RECORDS_BYTES // len(engines)) or [[]]
            described.append({**describe(engine, records), "records": first})
            later += [(engine.name, part) for part in rest]
        await self._send({"type": "snapshot", "engines": described})
        for name, part in later:
            await self._send_records(name, part)

    async def _watch_iterations(self) -> None:
        async for engine, records in get_gateway().client.watch_iterations():
            for part in in_frames(self._note(engine, records), RECORDS_BYTES):
                await self._send_records(engine, part)
            await asyncio.sleep(FRAME_INTERVAL)

    def _note(self, engine: str, records: Sequence[Record]) -> list[Record]:
        """The records that this viewer has not been sent; from here on it has."""
        last = self._last.get(engine, (-1, -1))
        new = [record for record in records if (record["epoch"], record["n"]) > last]
        if new:
            self._last[engine] = (new[-1]["epoch"], new[-1]["n"])
        return new

    async def _send_records(self, engine: str, records: Sequence[Record]) -> None:
        await self._send({"type": "iterations", "engine": engine, "records": records})

    async def _send(self, frame: dict[str, Any]) -> None:
        await self.send_text(orjson.dumps(frame).decode())


def in_frames(records: Sequence[Record], limit: int) -> list[list[Record]]:
    """`records` in order, in parts whose JSON is at most `limit` bytes; a larger record makes a part of its own."""
    parts: list[list[Record]] = []
    room = 0
    for record in records:
        size = len(orjson.dumps(record))
        if size > room or not parts:
            parts.append([])
            room = limit
        parts[-1].append(record)
        room -= size
    return parts


def describe(engine: EngineStatus, records: Sequence[Record]) -> dict[str, Any]:
    """An engine as a snapshot has it, but for its records. Who runs and waits comes from the newest record, as far as
    that still holds."""
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
    }
