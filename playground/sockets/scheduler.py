"""/ws/scheduler/: the live picture of the batch, for staff.

After `hello` a `snapshot`, then `iterations` frames. Newest wins: a viewer that falls behind misses older records and
never slows the engine or another viewer. Records carry (epoch, n), so a viewer sees what it missed. When an engine
comes, goes, or changes its state, a new snapshot says so.

A snapshot has the block map of each engine after its newest record: `blocks`, as /scheduler/blocks/ answers, or null,
and then frames of the type `blocks` bring it in parts (`start`: the first block of a part), if it is known at all. From
there on each record's `blocks` are applied to it. A viewer that misses a record (n is not one more than before in the
same epoch, or not 1 in a new one) has a wrong map and asks /scheduler/blocks/ for the newest. A map has (epoch, n):
what a viewer has of later records is to be applied to it, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import orjson

from inference.serving.client import UNREACHABLE
from inference.serving.messages import EngineStatus
from playground.gateway import get_gateway
from playground.sockets.base import FORBIDDEN, Socket
from playground.sockets.protocol import MAX_FRAME_BYTES

FRAME_INTERVAL = 0.05  # seconds: 20 frames a second at most
STATUS_INTERVAL = 0.5  # seconds: as often as an engine renews its status
HISTORY = 300  # records of each engine that a new viewer gets
BLOCKS_AT_ONCE = 4096  # of a block map in a frame
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
        """Snapshots, now and whenever the set of engines or the state or settings of one changes; then records."""
        while True:
            try:
                engines = await get_gateway().client.engines(max_age=STATUS_INTERVAL / 2)  # many viewers ask
            except UNREACHABLE:
                engines = []
            seen = [(e.name, e.state, e.epoch, e.settings, e.paused, e.slow_ms, _learnt(e)) for e in engines]
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
        described: list[dict[str, Any]] = []
        later: list[tuple[str, list[bytes]]] = []
        maps: list[dict[str, Any]] = []
        for engine in engines:
            try:
                records = await client.newest_iterations(engine.name, HISTORY)
            except UNREACHABLE:
                records = []
            if self._engines is None:  # a later snapshot may be overtaken by newer records: then none is skipped
                self._note(engine.name, records)
            first, *rest = in_frames([*map(orjson.dumps, records)], RECORDS_BYTES // len(engines)) or [[]]
            later += [(engine.name, part) for part in rest]
            parts = await block_parts(engine.name, records[-1] if records else None)
            whole = parts[0] if len(parts) == 1 and len(engines) == 1 else None
            maps += [] if whole else [{"type": "blocks", "engine": engine.name, **part} for part in parts]
            described.append({**describe(engine, records), "records": fragments(first), "blocks": whole})
        await self._send({"type": "snapshot", "engines": described})
        for name, part in later:
            await self._send_records(name, part)
        for part in maps:
            await self._send(part)

    async def _watch_iterations(self) -> None:
        async for engine, records in get_gateway().client.watch_iterations():
            lines = [encoded.line(engine, record) for record in self._note(engine, records)]
            for part in in_frames(lines, RECORDS_BYTES):
                await self._send_records(engine, part)
            await asyncio.sleep(FRAME_INTERVAL)

    def _note(self, engine: str, records: Sequence[Record]) -> list[Record]:
        """The records that this viewer has not been sent; from here on it has."""
        last = self._last.get(engine, (-1, -1))
        new = [record for record in records if (record["epoch"], record["n"]) > last]
        if new:
            self._last[engine] = (new[-1]["epoch"], new[-1]["n"])
        return new

    async def _send_records(self, engine: str, lines: Sequence[bytes]) -> None:
        await self._send({"type": "iterations", "engine": engine, "records": fragments(lines)})

    async def _send(self, frame: dict[str, Any]) -> None:
        await self.send_text(orjson.dumps(frame).decode())


def _learnt(engine: EngineStatus) -> int:
    """Grows by one each time the iterations that an engine has learnt its prices from have doubled: they are news."""
    return int(engine.costs.get("observed", 0)).bit_length()


class Encoded:
    """Records as JSON, made once for all viewers of this process, who are sent the same objects."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[str, int, int], tuple[Record, bytes]] = OrderedDict()

    def line(self, engine: str, record: Record) -> bytes:
        key = (engine, record["epoch"], record["n"])
        known, line = self._kept.get(key, (None, b""))
        if known is not record:
            line = orjson.dumps(record)
            self._kept[key] = (record, line)
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return line


encoded = Encoded(2 * HISTORY)


def fragments(lines: Sequence[bytes]) -> list[orjson.Fragment]:
    return [orjson.Fragment(line) for line in lines]


def in_frames(lines: Sequence[bytes], limit: int) -> list[list[bytes]]:
    """Records as JSON, in order, in parts of `limit` bytes at most; a larger record makes a part of its own."""
    parts: list[list[bytes]] = []
    room = 0
    for line in lines:
        if len(line) > room or not parts:
            parts.append([])
            room = limit
        parts[-1].append(line)
        room -= len(line)
    return parts


async def block_parts(engine: str, newest: Record | None) -> list[dict[str, Any]]:
    """The block map after an engine's newest record, in parts that fit a frame; empty where it is not known."""
    if newest is None:
        return []
    epoch, n = newest["epoch"], newest["n"]
    try:
        found = await get_gateway().client.ledger.block_map(engine, epoch, n)
    except UNREACHABLE:
        found = None
    if found is None:
        return []
    starts = range(0, found.total, BLOCKS_AT_ONCE)
    parts = await asyncio.to_thread(lambda: [found.to_json(start, start + BLOCKS_AT_ONCE) for start in starts])
    return [{"epoch": epoch, "n": n, "start": start, **part} for start, part in zip(starts, parts, strict=True)]


def describe(engine: EngineStatus, records: Sequence[Record]) -> dict[str, Any]:
    """An engine as a snapshot has it, but for its records. Who waits comes from the newest record; who runs from the
    newest one in which somebody did (a paused engine computes nothing, and they keep their seats), as far as that still
    holds."""
    newest = records[-1] if records and engine.busy else None
    running = _running(records) if newest else []
    return {
        "engine": engine.name,
        "state": engine.state,
        "busy": engine.busy,
        "model": engine.model,
        "epoch": engine.epoch,
        "settings": engine.settings,
        "costs": engine.costs,
        "paused": engine.paused,
        "slow_ms": engine.slow_ms,
        "kv": records[-1]["kv"] if newest else engine.kv,
        "running": running,
        "waiting": newest["waiting"] if newest else [],
        "waiting_total": newest["waiting_total"] if newest else engine.waiting,
    }


def _running(records: Sequence[Record]) -> list[dict[str, Any]]:
    gone: set[str] = set()
    for record in reversed(records):
        if record["epoch"] != records[-1]["epoch"]:
            break
        gone |= {item["request_id"] for item in record["finished"]} | set(record["preempted"])
        if record["rows"]:
            return [row for row in record["rows"] if row["request_id"] not in gone]
    return []
