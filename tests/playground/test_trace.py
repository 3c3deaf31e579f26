"""A span of iterations as a trace: its form, its tracks, its arrows, its size; that slices of a track never overlap."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import orjson
from support.ledgers import record

from inference.scheduling.ledger import Finished, IterationRecord, Row
from playground.http.trace import LARGEST, trace_json


async def trace_of(*records: IterationRecord, at_once: int = 2, largest: int = LARGEST) -> dict[str, Any]:
    lines = [orjson.dumps(one) for one in records]

    async def pages() -> AsyncIterator[list[bytes]]:
        for start in range(0, len(lines), at_once):
            yield lines[start : start + at_once]

    return orjson.loads(b"".join([part async for part in trace_json('engine "1"', 7, pages(), largest)]))


def named(trace: dict[str, Any], phase: str, **fields: Any) -> list[dict[str, Any]]:
    events = [event for event in trace["traceEvents"] if event["ph"] == phase]
    return [event for event in events if all(event.get(name) == value for name, value in fields.items())]


NEEDED = {  # besides name and pid
    "X": {"ts", "dur", "tid", "args"},
    "C": {"ts", "args"},
    "M": {"tid", "args"},
    "i": {"ts", "s", "tid", "args"},
    "s": {"ts", "tid", "id", "cat"},
    "f": {"ts", "tid", "id", "cat", "bp"},
}


def check_form(trace: dict[str, Any]) -> None:
    """What the trace event format asks of each kind of event, and of them together."""
    for event in trace["traceEvents"]:
        assert NEEDED[event["ph"]] | {"name", "pid"} <= event.keys()
        assert event.get("ts", 0) >= 0
        assert event.get("s") in (None, "g", "p", "t")
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
    tracks = slices_of(trace)
    for slices in tracks.values():
        assert all(begin <= end for begin, end in slices)
        assert all(one[1] <= other[0] + 0.01 for one, other in pairwise(sorted(slices)))
    names = Counter(event["tid"] for event in named(trace, "M", name="thread_name"))
    order = Counter(event["tid"] for event in named(trace, "M", name="thread_sort_index"))
    used = {event["tid"] for event in trace["traceEvents"] if event["ph"] in "Xisf"}
    assert used <= names.keys()
    assert names == order
    assert set(names.values()) <= {1}
    check_flows(trace, tracks)


def check_flows(trace: dict[str, Any], tracks: dict[int, list[tuple[float, float]]]) -> None:
    """Each has one start and one finish, later, and each of them lies within a slice of its track."""
    starts = {event["id"]: event for event in named(trace, "s")}
    finishes = {event["id"]: event for event in named(trace, "f")}
    assert len(starts) == len(named(trace, "s"))
    assert len(finishes) == len(named(trace, "f"))
    assert starts.keys() == finishes.keys()
    for number, start in starts.items():
        finish = finishes[number]
        assert (start["name"], start["cat"]) == (finish["name"], finish["cat"])
        assert start["ts"] < finish["ts"]
        for end in (start, finish):
            assert any(begin <= end["ts"] <= over for begin, over in tracks[end["tid"]])


def slices_of(trace: dict[str, Any]) -> dict[int, list[tuple[float, float]]]:
    tracks = defaultdict(list)
    for event in named(trace, "X"):
        tracks[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    return tracks


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
        "n": 4, "request_id": "r1", "tokens": 16, "context": 32, "blocks": 2,
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


def decode(request_id: str, seat: int, **fields: int) -> Row:
    return Row(request_id, seat, "decode", 1, 20, 2, **fields)


async def test_an_arrow_goes_from_the_slice_before_a_preemption_to_the_one_after_it() -> None:
    a, b = decode("a", 0), decode("b", 1)
    quiet: dict[str, Any] = {"finished": ()}
    trace = await trace_of(
        record(1, rows=(a, b), **quiet),
        record(2, rows=(a,), preempted=("b",), **quiet),
        record(3, rows=(), **quiet),  # paused
        record(4, rows=(a, Row("b", 5, "prefill", 20, 20, 2)), **quiet),
        record(5, rows=(a, decode("b", 5)), preempted=("a", "b"), **quiet),  # both after they had a part in it
        record(6, rows=(decode("b", 0),), finished=(Finished("a", "cancelled", None),)),
        record(7, rows=(decode("a", 3),), **quiet),  # of another life: nothing was lost
    )
    check_form(trace)
    arrows = [(event["tid"], event["ts"]) for phase in "sf" for event in named(trace, phase)]
    assert arrows == [(11, 12_500), (15, 132_500), (15, 102_500), (10, 162_500)]
    assert [(event["tid"], event["args"]["n"]) for event in named(trace, "i", name="preempted")] == [
        (11, 2),
        (10, 5),
        (15, 5),
    ]


async def test_drafts_are_told_where_there_were_some() -> None:
    trace = await trace_of(record(1, rows=(decode("a", 0), decode("b", 1, drafted=4, accepted=3)), finished=()))
    plain, drafted = [event["args"] for event in named(trace, "X", name="decode")]
    assert "drafted" not in plain
    assert (drafted["drafted"], drafted["accepted"]) == (4, 3)


async def test_a_file_that_would_be_too_large_ends_early_and_says_so() -> None:
    records = [record(n) for n in range(1, 41)]
    whole = await trace_of(*records)
    cut = await trace_of(*records, largest=4000)
    check_form(cut)
    assert len(orjson.dumps(cut)) < 8000 < len(orjson.dumps(whole))
    [word] = named(cut, "i", name="cut: the file would be too large")
    told = {event["args"]["n"] for event in named(cut, "X")}
    assert told == set(range(1, word["args"]["n"]))
    assert not named(whole, "i", name=word["name"])


async def test_an_iteration_of_64_rows_takes_few_bytes() -> None:
    """So that a span of thousands of them can be opened."""
    rows = tuple(decode(f"0190a1b2-c3d4-7e5f-8a9b-0123456789{seat:02}", seat) for seat in range(64))
    one, two = [await trace_of(*[record(n, rows=rows, finished=()) for n in range(1, 1 + count)]) for count in (1, 2)]
    assert len(orjson.dumps(two)) - len(orjson.dumps(one)) < 14_000
