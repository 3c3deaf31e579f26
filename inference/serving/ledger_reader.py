"""Iteration records and block maps, wherever they are kept: the broker's stream, its segments, files on disk.

Knows: which place has which iterations. Must not know: Django, who asks, how records are drawn.

Newest first, the places overlap: the stream has the last 1,000 records of an engine, segments in the broker what the
settings allow, and the files, where the folder is at hand, what was kept for longer. What none of them has is missing
from an answer, and that is no error: a broker may have lost everything.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from inference.scheduling.block_map import BlockMap
from inference.serving.broker import LEDGER_LENGTH, Broker
from inference.serving.ledger_disk import LedgerDisk
from inference.serving.record_lines import name_of
from inference.serving.segments import SEGMENT_RECORDS, Segment, SegmentError, SegmentInfo, apply_records

RUSH = 200  # records that may come between two looks at the stream
KEPT_UNPACKED = 8  # segments: whoever scrubs asks for neighbours


class Span(NamedTuple):
    """Iterations first..last of an epoch; some between them may be missing."""

    epoch: int
    first: int
    last: int


class LedgerReader:
    """All methods raise one of broker.UNREACHABLE while the broker is away. folder: of the files, if there is one."""

    def __init__(self, broker: Broker, folder: Path | None = None) -> None:
        self._broker = broker
        self._disk = LedgerDisk(folder) if folder is not None else None
        self._unpacked: OrderedDict[tuple[str, SegmentInfo], Segment] = OrderedDict()

    async def engines(self) -> list[str]:
        """Names of those of whom something is kept."""
        on_disk = await asyncio.to_thread(self._disk.engines) if self._disk else []
        return sorted({*on_disk, *await self._broker.ledger_engines()})

    async def spans(self, engine: str) -> list[Span]:
        """What is kept, one span an epoch, oldest first."""
        return _united([*await self.closed_spans(engine), *await self._stream_spans(engine)])

    async def closed_spans(self, engine: str) -> list[Span]:
        """The same of what is in segments."""
        return _united([Span(*info[:3]) for info in await self._segments(engine)])

    async def records(self, engine: str, epoch: int, first: int, last: int) -> list[bytes]:
        """Records n first..last as JSON, in order, as far as they are kept. Each is there once."""
        found: dict[int, bytes] = {}
        for info in await self._segments(engine):
            if info.epoch != epoch or info.last < first or info.first > last:
                continue
            segment = await self._read(engine, info)
            if segment is not None:
                found.update(enumerate(segment.between(first, last), max(first, segment.first)))
        begun = max(found, default=first - 1) + 1
        if begun <= last:
            found.update(await self._from_stream(engine, epoch, begun, last))
        return [found[n] for n in sorted(found)]

    async def pages(self, engine: str, epoch: int, first: int, last: int) -> AsyncGenerator[list[bytes]]:
        """The same, some hundred at a time."""
        for start in range(first, last + 1, SEGMENT_RECORDS):
            if records := await self.records(engine, epoch, start, min(last, start + SEGMENT_RECORDS - 1)):
                yield records

    async def block_map(self, engine: str, epoch: int, n: int) -> BlockMap | None:
        """The map after iteration n of an epoch, after none of them for n = 0; None where too little of it is kept."""
        blocks, done = BlockMap(), 0
        before = [info for info in await self._segments(engine) if info.epoch == epoch and info.first <= n]
        for info in reversed(before):
            segment = await self._read(engine, info)
            if segment is not None:
                blocks, done = await asyncio.to_thread(segment.map_after, n), min(n, segment.last)
                break
        rest = await self._from_stream(engine, epoch, done + 1, n) if done < n else {}
        if len(rest) < n - done:
            return None
        try:
            await asyncio.to_thread(apply_records, blocks, [rest[i] for i in sorted(rest)])
        except KeyError:  # records of a version that did not tell of blocks
            return None
        return blocks

    async def newest(self, engine: str) -> Span | None:
        """The newest epoch of an engine."""
        spans = await self.spans(engine)
        return spans[-1] if spans else None

    # Where they are

    async def _segments(self, engine: str) -> list[SegmentInfo]:
        """Those of the broker and those on disk, each once, oldest first."""
        on_disk = await asyncio.to_thread(self._disk.segments, engine) if self._disk else []
        kept = {info[:3]: info for info in [*on_disk, *await self._broker.segments(engine)]}
        return sorted(kept.values())

    async def _read(self, engine: str, info: SegmentInfo) -> Segment | None:
        """None where it is gone, or damaged."""
        key = (engine, info)
        if (segment := self._unpacked.get(key)) is not None:
            self._unpacked.move_to_end(key)
            return segment
        data = await self._broker.segment(engine, info)
        if data is None and self._disk is not None:
            data = await asyncio.to_thread(self._disk.read, engine, info)
        if data is None:
            return None
        try:
            segment = await asyncio.to_thread(Segment.decode, data)
        except SegmentError:
            return None
        self._unpacked[key] = segment
        while len(self._unpacked) > KEPT_UNPACKED:
            self._unpacked.popitem(last=False)
        return segment

    async def _stream_spans(self, engine: str) -> list[Span]:
        """Of the stream's ends: what lies between is told by segments, or follows from them."""
        ends = [name_of(record) for record in await self._broker.ledger_ends(engine)]
        if not ends:
            return []
        (old_epoch, oldest), (epoch, newest) = ends
        if old_epoch == epoch:
            return [Span(epoch, oldest, newest)]
        return [Span(epoch, 1, newest)]  # all of this epoch is in the stream, since it begins before

    async def _from_stream(self, engine: str, epoch: int, first: int, last: int) -> dict[int, bytes]:
        """Records first..last of an epoch that the stream has, by n."""
        newest = await self._broker.newest_records(engine, 1)
        if not newest:
            return {}
        newest_epoch, n = name_of(newest[0])
        if newest_epoch == epoch and n < first:
            return {}
        count = min(LEDGER_LENGTH, n - first + 1 + RUSH) if newest_epoch == epoch else LEDGER_LENGTH
        records = await self._broker.newest_records(engine, count)
        return await asyncio.to_thread(_of_span, records, Span(epoch, first, last))


def _united(parts: Iterable[Span]) -> list[Span]:
    """One span an epoch, oldest first."""
    spans: dict[int, Span] = {}
    for part in parts:
        known = spans.get(part.epoch, part)
        spans[part.epoch] = Span(part.epoch, min(known.first, part.first), max(known.last, part.last))
    return [spans[epoch] for epoch in sorted(spans)]


def _of_span(records: Sequence[bytes], span: Span) -> dict[int, bytes]:
    named = [(name_of(record), record) for record in records]
    return {n: record for (epoch, n), record in named if epoch == span.epoch and span.first <= n <= span.last}
