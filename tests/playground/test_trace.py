"""A span of iterations as a trace: its form, its tracks, and that slices of a track never overlap."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import orjson
from support.ledgers import record

from inference.scheduling.ledger import Finished, IterationRecord
from playground.http.trace import trace_json


async def trace_of(*records: IterationRecord, at_once: int = 2) -> dict[str, Any]:
    lines = [orjson.dumps(one) for one in records]

    async def pages() -> AsyncIterator[list[bytes]]:
        for start in range(0, len(lines), at_once):
            yield lines[start : start + at_once]

    return orjson.loads(b"".join([part async for part in trace_json('engine "1"', 7, pages())]))


def named(trace: dict[str, Any], phase: str, **fields: Any) -> list[dict[str, Any]]:
    events = [event for event in trace["traceEvents"] if event["ph"] == phase]
    return [event for event in events if all(event.get(name) == value for name, value in fields.items())]


def check_form(trace: dict[str, Any]) -> None:
    """What Chrome's trace event format asks of each kind of event."""
    needed = {"X": {"ts", "dur", "tid", "args"}, "C": {"ts", "args"}, "M": {"tid", "args"}, "i": {"ts", "s", "tid"}}
    tracks = defaultdict(list)
    for event in trace["traceEvents"]:
        assert needed[event["ph"]] | {"name", "pid"} <= event.keys()
        if event["ph"] == "X":
            tracks[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in tracks.values():
        assert all(begin <= end for begin, end in slices)
        assert all(one[1] <= other[0] + 0.01 for one, other in pairwise(sorted(slices)))
    names = {event["tid"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert tracks.keys() <= names


async def test_a_trace_has_a_track_for_each_seat_and_one_for_phases() -> None:
    trace = await trace_of(*[record(n) for n in range(4, 9)])
    check_form(trace)
    assert trace["otherData"] == {"engine": 'engine "1"', "epoch": "7"}
    tracks = {event["tid"]: event["args"]["name"] for event in named(trace, "M", name="thread_name")}
    assert tracks == {1: "phases", 10: "seat 0", 12: "seat 2"}
    prefills, decodes = named(trace, "X", name="prefill"), named(trace, "X", name="decode")
    assert [event["ts"] for event in prefills] == [0, 30_000, 60_000, 90_000, 120_000]
    assert {event["dur"] for event in prefills + decodes} == {25_000}
    assert {event["tid"] for event in prefills} == {10}
    assert prefills[0]["args"] == {
        "n": 4, "request_id": "r1", "tokens": 16, "context": 32, "blocks": 2, "drafted": 0, "accepted": 0,
    }  # fmt: skip
    phases = named(trace, "X", tid=1)[:4]
    assert [(event["name"], event["ts"], event["dur"]) for event in phases] == [
        ("schedule", 0, 1000),
        ("forward", 1000, 20_000),
        ("sample", 21_000, 3000),
        ("commit", 24_000, 1000),
    ]


async def test_counters_and_moments() -> None:
    trace = await trace_of(
        record(1, preempted=("r8",), finished=(Finished("r2", "stop", 2), Finished("r9", "x", None)))
    )
    check_form(trace)
    [queue], [blocks] = named(trace, "C", name="queue"), named(trace, "C", name="KV blocks")
    assert (queue["args"], blocks["args"]) == ({"waiting": 1}, {"used": 3, "cached": 2, "free": 7})
    moments = {event["name"]: event for event in named(trace, "i")}
    assert moments.keys() == {"finished: stop", "preempted"}
    assert (moments["finished: stop"]["tid"], moments["finished: stop"]["ts"]) == (12, 25_000)
    assert moments["preempted"]["args"] == {"n": 1, "request_id": "r8"}


async def test_iterations_that_overlap_end_where_the_next_begins() -> None:
    """As on a GPU, where the next one is launched before this one is told."""
    trace = await trace_of(*[record(n, t0=10.0 * n, idle=(3,)) for n in range(1, 5)])
    check_form(trace)
    assert [event["dur"] for event in named(trace, "X", name="decode")] == [10_000] * 3 + [25_000]
    assert [event["name"] for event in named(trace, "X", tid=1)][:3] == ["schedule", "forward", "schedule"]
    assert len(named(trace, "X", name="idle", tid=13)) == 4


async def test_no_records_make_a_trace_of_no_slices() -> None:
    trace = await trace_of()
    check_form(trace)
    assert named(trace, "X") == []
