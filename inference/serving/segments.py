"""A segment: some hundred iteration records of one engine process, compressed, with the block map before the first.

Knows: the form of a segment's bytes and how a map is rebuilt from it. Must not know: brokers, files, threads.

The bytes are zlib's, of: a line of JSON with `engine`, `epoch`, `first` (n of the first record), `total` (blocks of the
map) and `held` (its held blocks: block, references, owner); then `total` bytes, 1 for a block that can be found again;
then a newline and a line of JSON for each record, whose n rise by one.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from inference.scheduling.block_map import BlockMap, Change

SEGMENT_RECORDS = 256
LEVEL = 6  # of zlib: 0.06 ms for a record of 64 rows, in a nineteenth of its bytes
LARGEST = 256 << 20  # bytes of an unpacked segment that are read


class SegmentError(ValueError):
    """These bytes are no whole segment."""


class SegmentInfo(NamedTuple):
    """Which records a segment has: n first..last of one epoch. They sort in the order of time.  size: packed bytes."""

    epoch: int
    first: int
    last: int
    size: int


class SegmentWriter:
    """Takes records one by one and compresses each at once, so that no long work is due at the end.

    The map goes on from segment to segment: one writer for each epoch, `close` after each segment.
    """

    def __init__(self, engine: str, epoch: int, blocks: BlockMap | None = None) -> None:
        self.engine, self.epoch = engine, epoch
        self._map = blocks or BlockMap()
        self._begin()

    @property
    def count(self) -> int:
        return self._last - self._first + 1 if self._parts else 0

    def follows(self, epoch: int, n: int) -> bool:
        """Whether a record of that name is the next one here."""
        return epoch == self.epoch and (not self._parts or n == self._last + 1)

    def add(self, n: int, record: bytes, changes: Sequence[Change], total: int) -> None:
        """Record n, which `follows`, as JSON; what it tells of blocks."""
        if not self._parts:
            self._first = n
            self._put(self._header())
        self._put(b"\n" + record)
        self._last = n
        self._map.apply(changes, total)

    def close(self) -> tuple[SegmentInfo, bytes]:
        """What was added since the last call. There must be something."""
        if not self._parts:
            raise ValueError("a segment of no records can't be made")
        self._parts.append(self._compressor.flush())
        data = b"".join(self._parts)
        info = SegmentInfo(self.epoch, self._first, self._last, len(data))
        self._begin()
        return info, data

    def _begin(self) -> None:
        self._compressor = zlib.compressobj(LEVEL)
        self._parts: list[bytes] = []
        self._first = self._last = 0

    def _header(self) -> bytes:
        held, findable = self._map.keyframe()
        header = {"engine": self.engine, "epoch": self.epoch, "first": self._first, "total": len(findable)}
        return orjson.dumps({**header, "held": held}) + b"\n" + findable

    def _put(self, data: bytes) -> None:
        self._parts.append(self._compressor.compress(data))


class Segment:
    """A segment that was read. records: its lines of JSON, the first one's n is `first`."""

    def __init__(self, header: dict[str, Any], findable: bytes, records: list[bytes]) -> None:
        self.engine: str = header["engine"]
        self.epoch: int = header["epoch"]
        self.first: int = header["first"]
        self._held: list[list[Any]] = header["held"]
        self._findable = findable
        self.records = records

    @property
    def last(self) -> int:
        return self.first + len(self.records) - 1

    @classmethod
    def decode(cls, data: bytes) -> Segment:
        """Raises SegmentError where the bytes are damaged or not whole."""
        try:
            unpacking = zlib.decompressobj()
            text = unpacking.decompress(data, LARGEST)
            if not unpacking.eof:
                raise SegmentError("a segment ends too early, or is larger than any should be")
            line, _, rest = text.partition(b"\n")
            header = orjson.loads(line)
            total = header["total"]
            return cls(header, rest[:total], rest[total + 1 :].split(b"\n"))
        except (zlib.error, orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise SegmentError(f"a segment can't be read: {type(error).__name__}") from None

    def between(self, first: int, last: int) -> list[bytes]:
        """Its records n first..last, as far as it has them."""
        return self.records[max(0, first - self.first) : max(0, last - self.first + 1)]

    def map_after(self, n: int) -> BlockMap:
        """The block map after record n, or after its last one where that comes first."""
        blocks = BlockMap.of_keyframe(self._held, self._findable)
        apply_records(blocks, self.between(self.first, n))
        return blocks


def apply_records(blocks: BlockMap, records: Sequence[bytes]) -> None:
    for record in records:
        told = orjson.loads(record)
        blocks.apply(told["blocks"], told["kv"]["total"])
