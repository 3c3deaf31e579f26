"""Iterations as a trace that ui.perfetto.dev opens: Chrome's trace event format, JSON, one event a line.

Knows: the format (the "Trace Event Format" document of Chromium's trace-viewer) and what a record tells. Must not know:
where records come from, HTTP.

One track a seat, with a slice for each iteration in which its request computed something; one track for the phases of
iterations; counters for the queue, the KV blocks and the tokens. Times are µs since the first iteration began.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import orjson

PHASES = ("schedule", "forward", "sample", "commit")
PROCESS = 1
PHASES_TRACK = 1
FIRST_SEAT_TRACK = 10

Event = dict[str, Any]
Record = dict[str, Any]


async def trace_json(engine: str, epoch: int, pages: AsyncIterator[list[bytes]]) -> AsyncIterator[bytes]:
    """The trace of records that come in order, some at a time."""
    trace = Trace()
    yield b'{"displayTimeUnit":"ms","otherData":' + orjson.dumps({"engine": engine, "epoch": str(epoch)})
    yield b',"traceEvents":[\n' + orjson.dumps(_name("process_name", PHASES_TRACK, f"{engine}, epoch {epoch}"))
    yield b",\n" + orjson.dumps(_name("thread_name", PHASES_TRACK, "phases"))
    before: Record | None = None
    async for page in pages:
        lines = []
        for record in map(orjson.loads, page):
            if before is not None:
                lines += trace.events(before, record["t0"])
            before = record
        if lines:
            yield b"".join(b",\n" + orjson.dumps(event) for event in lines)
    if before is not None:
        yield b"".join(b",\n" + orjson.dumps(event) for event in trace.events(before, None))
    yield b"\n]}\n"


class Trace:
    """Remembers where time begins and which tracks have a name."""

    def __init__(self) -> None:
        self._t0: float | None = None
        self._named: set[int] = set()

    def events(self, record: Record, next_t0: float | None) -> Iterator[Event]:
        """Those of one iteration. next_t0: when the next one begins. On a GPU it begins before this one is told whole,
        and slices of a track must not overlap: there this one ends."""
        t0 = record["t0"]
        if self._t0 is None:
            self._t0 = t0
        begin, lasted = (t0 - self._t0) * 1000, 1000 * sum(record[phase] for phase in PHASES)
        end = begin + lasted
        if next_t0 is not None and next_t0 >= t0:
            end = min(end, (next_t0 - self._t0) * 1000)
        yield from self._phases(record, begin, end)
        for row in record["rows"]:
            yield from self._seat(row["seat"])
            args = {"n": record["n"], **{name: row[name] for name in row if name not in ("seat", "kind")}}
            yield _slice(row["kind"], row["seat"] + FIRST_SEAT_TRACK, begin, end, args)
        for seat in record["idle"]:
            yield from self._seat(seat)
            yield _slice("idle", seat + FIRST_SEAT_TRACK, begin, end, {"n": record["n"]})
        for finished in record["finished"]:
            if finished["seat"] is not None:
                yield from self._seat(finished["seat"])
                args = {"n": record["n"], "request_id": finished["request_id"]}
                yield _instant(f"finished: {finished['reason']}", finished["seat"] + FIRST_SEAT_TRACK, end, args)
        for request_id in record["preempted"]:
            yield _instant("preempted", PHASES_TRACK, begin, {"n": record["n"], "request_id": request_id})
        yield _counter("queue", begin, {"waiting": record["waiting_total"]})
        yield _counter("KV blocks", begin, {name: record["kv"][name] for name in ("used", "cached", "free")})
        yield _counter("tokens", begin, {"tokens": record["budget"]["used"]})

    def _phases(self, record: Record, begin: float, end: float) -> Iterator[Event]:
        for phase in PHASES:
            over = min(begin + 1000 * record[phase], end)
            if over > begin:
                yield _slice(phase, PHASES_TRACK, begin, over, {"n": record["n"], "policy": record["policy"]})
            begin = over

    def _seat(self, seat: int) -> Iterator[Event]:
        if seat not in self._named:
            self._named.add(seat)
            yield _name("thread_name", seat + FIRST_SEAT_TRACK, f"seat {seat}")


def _name(kind: str, track: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": PROCESS, "tid": track, "args": {"name": name}}


def _slice(name: str, track: int, begin: float, end: float, args: dict[str, Any]) -> Event:
    """Rounded ends, not a rounded duration: two that meet must not overlap."""
    start = round(begin, 1)
    return {
        "ph": "X", "name": name, "pid": PROCESS, "tid": track, "ts": start,
        "dur": round(round(end, 1) - start, 1), "args": args,
    }  # fmt: skip


def _instant(name: str, track: int, at: float, args: dict[str, Any]) -> Event:
    return {"ph": "i", "s": "t", "name": name, "pid": PROCESS, "tid": track, "ts": round(at, 1), "args": args}


def _counter(name: str, at: float, values: dict[str, int]) -> Event:
    return {"ph": "C", "name": name, "pid": PROCESS, "ts": round(at, 1), "args": values}
