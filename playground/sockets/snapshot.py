"""How an engine looks at a moment, as frames for /ws/scheduler/: who runs, who waits, its newest records, its blocks.

Knows: statuses and records. Must not know: sockets, who watches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import orjson

from inference.serving.client import UNREACHABLE, RecordLine, RecordName
from inference.serving.messages import EngineStatus
from playground.gateway import get_gateway
from playground.sockets.protocol import MAX_FRAME_BYTES

HISTORY = 300  # records of each engine that a new viewer gets
LOOK_BACK = 1000  # of them that are searched for who has a seat; the broker has no more
BLOCKS_AT_ONCE = 4096  # of a block map in a frame
RECORDS_BYTES = MAX_FRAME_BYTES // 2  # of the records in a frame: the server can send no frame over MAX_FRAME_BYTES

Record = dict[str, Any]


class Snapshot(NamedTuple):
    """frames: to be sent in order.  newest: the name of each engine's newest record in them."""

    frames: list[str]
    newest: dict[str, RecordName]


async def take_snapshot(engines: Sequence[EngineStatus], known: Collection[str] = ()) -> Snapshot:
    """The snapshot; of a history that is too long for one frame, the rest in `iterations` frames. known: engines whose
    history and block map its readers have; they are told neither again."""
    client = get_gateway().client
    described: list[dict[str, Any]] = []
    later: list[str] = []
    maps: list[str] = []
    newest: dict[str, RecordName] = {}
    for engine in engines:
        try:
            records = await client.newest_iterations(engine.name, HISTORY)
        except UNREACHABLE:
            records = []
        stands = describe(engine, Parsed(records), await _seated(engine, Parsed(records)))
        if engine.name in known:
            described.append({**stands, "records": [], "blocks": None})
            continue
        if records:
            newest[engine.name] = records[-1].name
        first, *rest = in_frames([record.data for record in records], RECORDS_BYTES // len(engines)) or [[]]
        later += [iterations_frame(engine.name, part) for part in rest]
        parts = await block_parts(engine.name, newest.get(engine.name))
        whole = parts[0] if len(parts) == 1 and len(engines) == 1 else None
        maps += [] if whole else [to_frame({"type": "blocks", "engine": engine.name, **part}) for part in parts]
        described.append({**stands, "records": fragments(first), "blocks": whole})
    return Snapshot([to_frame({"type": "snapshot", "engines": described}), *later, *maps], newest)


def iterations_frame(engine: str, lines: Sequence[bytes]) -> str:
    return to_frame({"type": "iterations", "engine": engine, "records": fragments(lines)})


def to_frame(frame: dict[str, Any]) -> str:
    return orjson.dumps(frame).decode()


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


async def block_parts(engine: str, newest: RecordName | None) -> list[dict[str, Any]]:
    """The block map after an engine's newest record, in parts that fit a frame; empty where it is not known."""
    if newest is None:
        return []
    try:
        found = await get_gateway().client.ledger.block_map(engine, newest.epoch, newest.n)
    except UNREACHABLE:
        found = None
    if found is None:
        return []
    starts = range(0, found.total, BLOCKS_AT_ONCE)
    parts = await asyncio.to_thread(lambda: [found.to_json(start, start + BLOCKS_AT_ONCE) for start in starts])
    return [{**newest._asdict(), "start": start, **part} for start, part in zip(starts, parts, strict=True)]


class Parsed(Sequence[Record]):
    """Records that are parsed when they are looked at: most are passed on as they came."""

    def __init__(self, lines: Sequence[RecordLine]) -> None:
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Parsed(self._lines[index])
        return orjson.loads(self._lines[index].data)


def describe(engine: EngineStatus, records: Sequence[Record], seated: list[Record]) -> dict[str, Any]:
    """An engine as a snapshot has it, but for its records. Who waits comes from the newest one."""
    newest = records[-1] if records and engine.busy and _is_of(engine, records[-1]) else None
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
        "refused": engine.refused,
        "kv": records[-1]["kv"] if newest else engine.kv,
        "running": seated,
        "waiting": newest["waiting"] if newest else [],
        "waiting_total": newest["waiting_total"] if newest else engine.waiting,
    }


def _is_of(engine: EngineStatus, record: Record) -> bool:
    """Whether the process that runs now made it. After a restart the newest record is for a while of the one before,
    of whose requests none has a seat."""
    return engine.state == "ready" and engine.epoch in (0, record["epoch"])


async def _seated(engine: EngineStatus, records: Sequence[Record]) -> list[Record]:
    """Rows of those who have a seat. While an engine is paused its records have none: the more there are of them, the
    further back stands who keeps a seat."""
    if not records or not engine.busy or not _is_of(engine, records[-1]):
        return []
    if (found := _running(records)) or not engine.running:
        return found
    try:
        older = Parsed(await get_gateway().client.newest_iterations(engine.name, LOOK_BACK))
    except UNREACHABLE:
        return []
    return await asyncio.to_thread(_running, older) if len(older) else []


def _running(records: Sequence[Record]) -> list[Record]:
    """Rows of the newest record that has some, as far as they still hold."""
    gone: set[str] = set()
    epoch = records[-1]["epoch"]
    for record in reversed(records):
        if record["epoch"] != epoch:
            break
        gone |= {item["request_id"] for item in record["finished"]} | set(record["preempted"])
        if record["rows"]:
            return [row for row in record["rows"] if row["request_id"] not in gone]
    return []
