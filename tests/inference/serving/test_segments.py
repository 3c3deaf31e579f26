"""Segments: what goes in comes out, with the block map at every record; damage is noticed."""

from __future__ import annotations

import zlib

import pytest
from support.ledgers import Run

from inference.scheduling.block_map import BlockMap
from inference.serving.segments import Segment, SegmentError, SegmentInfo, SegmentWriter


def written(run: Run, *ends: int) -> list[tuple[SegmentInfo, bytes]]:
    """Segments of a run's records, each up to one of `ends`."""
    writer, closed = SegmentWriter("engine-1", run.epoch), []
    for record, line in zip(run.records, run.lines, strict=True):
        assert writer.follows(record.epoch, record.n)
        writer.add(record.n, line, record.blocks, record.kv.total)
        if record.n in ends:
            closed.append(writer.close())
    return closed


def test_what_goes_in_comes_out() -> None:
    run = Run(7, 20)
    (first, data), (second, more) = written(run, 12, 20)
    assert (first, second) == (SegmentInfo(7, 1, 12, len(data)), SegmentInfo(7, 13, 20, len(more)))
    assert len(data) < sum(map(len, run.lines[:12])) / 3
    one, other = Segment.decode(data), Segment.decode(more)
    assert (one.engine, one.epoch, one.first, one.last) == ("engine-1", 7, 1, 12)
    assert one.records + other.records == run.lines
    assert other.between(0, 14) == run.lines[12:14]
    assert other.between(15, 99) == run.lines[14:]
    assert other.between(1, 12) == other.between(21, 30) == []


def test_the_map_is_there_at_every_record() -> None:
    run = Run(7, 30, seed=5)
    closed = written(run, 9, 10, 30)
    for info, data in closed:
        segment = Segment.decode(data)
        for n in range(info.first, info.last + 1):
            assert segment.map_after(n).to_json() == run.drawn(n)
    assert Segment.decode(closed[0][1]).map_after(99).to_json() == run.drawn(9)


def test_a_map_of_another_size_begins_anew() -> None:
    run, larger = Run(7, 8), Run(7, 8, total=40)
    writer = SegmentWriter("e", 7)
    for record, line in zip(run.records, run.lines, strict=True):
        writer.add(record.n, line, record.blocks, 12)
    writer.close()
    for record, line in zip(larger.records, larger.lines, strict=True):
        writer.add(record.n + 8, line, record.blocks, 40)
    assert Segment.decode(writer.close()[1]).map_after(16).to_json() == larger.drawn(8)


def test_a_writer_says_what_follows() -> None:
    run = Run(7, 2)
    writer = SegmentWriter("e", 7, BlockMap(12))
    assert writer.follows(7, 5)
    assert not writer.follows(8, 1)
    writer.add(1, run.lines[0], (), 12)
    assert (writer.follows(7, 2), writer.follows(7, 1), writer.follows(7, 3), writer.count) == (True, False, False, 1)
    writer.close()
    with pytest.raises(ValueError, match="no records"):
        writer.close()


def test_damage_is_noticed() -> None:
    [(_, data)] = written(Run(7, 20), 20)
    wrong = bytes([*data[:40], data[40] ^ 255, *data[41:]])
    for broken in (b"", data[:-1], data[:50], wrong, zlib.compress(b"[]\n"), zlib.compress(b"{}\n\n{}")):
        with pytest.raises(SegmentError):
            Segment.decode(broken)
