"""Iterations as a trace that ui.perfetto.dev opens: Chrome's trace event format, JSON, one event a line.

Knows: the format (the "Trace Event Format" document of Chromium's trace-viewer) and what a record tells. Must not know:
where records come from, HTTP.

One track a seat, with a slice for each iteration in which its request computed something; one track for the phases of
iterations; counters for the queue, the KV blocks and the tokens; a flow, drawn as an arrow, from the last slice of a
request that was preempted to the first one in which it computes again. Times are µs since the first iteration began.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import orjson

PHASES = ("schedule", "forward", "sample", "commit")
PROCESS = 1
PHASES_TRACK = 1
FIRST_SEAT_TRACK = 10
LARGEST = 100 * 2**20  # bytes of a file: what a browser still opens

Event = dict[str, Any]
Record = dict[str, Any]
Place = tuple[int, float]  # a track, and a moment within one of its slices


async def trace_json(
    engine: str, epoch: int, pages: AsyncIterator[list[bytes]], largest: int = LARGEST
) -> AsyncIterator[bytes]:
    """The trace of records that come in order, some at a time. One that would be larger ends early and says so."""
    trace = Trace()
    yield b'{"displayTimeUnit":"ms","otherData":' + orjson.dumps({"engine": engine, "epoch": str(epoch)})
    yield b',"traceEvents":[\n' + orjson.dumps(_name("process_name", PHASES_TRACK, f"{engine}, epoch {epoch}"))
    yield _lines(_track(PHASES_TRACK, "phases"))
    before: Record | None = None
    left = largest
    async for page in pages:
        events: list[Event] = []
        for record in map(orjson.loads, page):
            if before is not None:
                events += trace.events(before, record["t0"])
            before = record
        yield (lines := _lines(events))
        left -= len(lines)
        if left < 0 and before is not None:
            yield _lines([trace.end(before)])
            before = None
            break
    if before is not None:
        yield _lines(trace.events(before, None))
    yield b"\n]}\n"


class Trace:
    """Remembers where time begins, which tracks have a name, and where those were who lost their blocks."""

    def __init__(self) -> None:
        self._t0: float | None = None
        self._named: set[int] = set()
        self._newest: dict[str, Place] = {}  # by request, of the newest iteration that had rows
        self._lost: dict[str, Place] = {}  # by request that was preempted and has not come back
        self._flows = 0

    def events(self, record: Record, next_t0: float | None) -> Iterator[Event]:
        """Those of one iteration. next_t0: when the next one begins. On a GPU it begins before this one is told whole,
        and slices of a track must not overlap: there this one ends."""
        begin, end = self._span(record, next_t0)
        yield from self._phases(record, begin, end)
        for row in record["rows"]:
            yield from self._seat(row["seat"])
            yield _slice(row["kind"], row["seat"] + FIRST_SEAT_TRACK, begin, end, _args(record, row))
        for seat in record["idle"]:
            yield from self._seat(seat)
            yield _slice("idle", seat + FIRST_SEAT_TRACK, begin, end, {"n": record["n"]})
        yield from self._flow(record, begin, end)
        for finished in record["finished"]:
            self._lost.pop(finished["request_id"], None)
            if finished["seat"] is not None:
                yield from self._seat(finished["seat"])
                args = {"n": record["n"], "request_id": finished["request_id"]}
                yield _instant(f"finished: {finished['reason']}", finished["seat"] + FIRST_SEAT_TRACK, end, args)
        yield _counter("queue", begin, {"waiting": record["waiting_total"]})
        yield _counter("KV blocks", begin, {name: record["kv"][name] for name in ("used", "cached", "free")})
        yield _counter("tokens", begin, {"tokens": record["budget"]["used"]})

    def end(self, record: Record) -> Event:
        """Word that nothing is told from this iteration on."""
        begin, _ = self._span(record, None)
        return _instant("cut: the file would be too large", PHASES_TRACK, begin, {"n": record["n"]})

    def _span(self, record: Record, next_t0: float | None) -> tuple[float, float]:
        t0 = record["t0"]
        if self._t0 is None:
            self._t0 = t0
        begin = (t0 - self._t0) * 1000
        end = begin + 1000 * sum(record[phase] for phase in PHASES)
        if next_t0 is not None and next_t0 >= t0:
            end = min(end, (next_t0 - self._t0) * 1000)
        return begin, end

    def _phases(self, record: Record, begin: float, end: float) -> Iterator[Event]:
        for phase in PHASES:
            over = min(begin + 1000 * record[phase], end)
            if over > begin:
                yield _slice(phase, PHASES_TRACK, begin, over, {"n": record["n"], "policy": record["policy"]})
            begin = over

    def _seat(self, seat: int) -> Iterator[Event]:
        if seat not in self._named:
            self._named.add(seat)
            yield from _track(seat + FIRST_SEAT_TRACK, f"seat {seat}")

    def _flow(self, record: Record, begin: float, end: float) -> Iterator[Event]:
        """Marks of those preempted, arrows for those who are back."""
        here = {row["request_id"]: (row["seat"] + FIRST_SEAT_TRACK, (begin + end) / 2) for row in record["rows"]}
        for request_id in sorted(here.keys() & self._lost.keys()):
            self._flows += 1
            yield _flow("s", self._flows, self._lost.pop(request_id))
            yield _flow("f", self._flows, here[request_id])
        for request_id in record["preempted"]:
            place = here.get(request_id) or self._newest.get(request_id)
            if place is not None:
                self._lost[request_id] = place
            track = PHASES_TRACK if place is None else place[0]
            yield _instant("preempted", track, begin, {"n": record["n"], "request_id": request_id})
        self._newest = here or self._newest


def _lines(events: Iterator[Event] | Sequence[Event]) -> bytes:
    """Events after others."""
    return b"".join(b",\n" + orjson.dumps(event) for event in events)


def _args(record: Record, row: dict[str, Any]) -> dict[str, Any]:
    """What a row tells beside its track and its name; of drafts only where there were some."""
    left_out = {"seat", "kind"} if row.get("drafted") else {"seat", "kind", "drafted", "accepted"}
    return {"n": record["n"], **{name: value for name, value in row.items() if name not in left_out}}


def _track(track: int, name: str) -> Iterator[Event]:
    """Its name, and its place among the others."""
    yield _name("thread_name", track, name)
    yield {"ph": "M", "name": "thread_sort_index", "pid": PROCESS, "tid": track, "args": {"sort_index": track}}


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


def _flow(phase: str, number: int, place: Place) -> Event:
    """A start ("s") or a finish ("f") of an arrow: it is bound to the slice around that moment."""
    track, at = place
    return {
        "ph": phase, "id": number, "name": "preempted", "cat": "preemption", "pid": PROCESS, "tid": track,
        "ts": round(at, 1), **({"bp": "e"} if phase == "f" else {}),
    }  # fmt: skip
