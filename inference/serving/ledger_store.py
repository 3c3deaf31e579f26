"""The engine's side of the ledger's history: records into segments, segments into the broker and onto the disk.

Knows: when a segment is whole, where it goes, what a process that died before has left. Must not know: the engine, the
step thread (all of this runs in the broker thread), who reads.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from inference.scheduling.block_map import BlockMap
from inference.serving.broker import LEDGER_LENGTH
from inference.serving.broker_engine import EngineBroker
from inference.serving.ledger_disk import LedgerDisk
from inference.serving.ledger_reader import LedgerReader
from inference.serving.segments import SEGMENT_RECORDS, SegmentInfo, SegmentWriter

log = logging.getLogger("batchscope.engine")

ROUND = 1.0  # seconds between looks at what is to be written
OLDEST_OPEN = 30.0  # seconds after which a segment is closed though it is short
MOST_PENDING = 64  # segments that wait for the broker; then the oldest is given up
PRUNE_EVERY = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class LedgerKeep:
    """How much of the ledger is kept: in the broker so many iterations and bytes of an engine, on disk so many days and
    bytes of all engines.  folder: None or 0 bytes: nothing on disk."""

    iterations: int = 200_000
    memory: int = 128 << 20
    folder: Path | None = None
    days: float = 7.0
    disk: int = 1 << 30


@dataclass(slots=True)
class _Pending:
    info: SegmentInfo
    data: bytes
    on_disk: bool = False


class LedgerStore:
    """`add` each record once, in order; let `archive` run; `close` at the end. epoch: this process's; 0 as long as it
    is not known."""

    def __init__(self, broker: EngineBroker, engine: str, epoch: int, keep: LedgerKeep) -> None:
        self._broker, self._engine, self.epoch, self._keep = broker, engine, epoch, keep
        self._disk = LedgerDisk(keep.folder) if keep.folder is not None and keep.disk else None
        self._writer = SegmentWriter(engine, epoch)
        self._opened = 0.0
        self._pending: deque[_Pending] = deque(maxlen=MOST_PENDING)
        self._adopted = self._broken = self._disk_refuses = False
        self._pruned = -math.inf

    def newest_on_disk(self) -> int:
        """The newest epoch of which a process of this name has left something there; 0: of none."""
        return self._disk.newest_epoch(self._engine) if self._disk is not None else 0

    def add(self, record: Any, line: bytes) -> None:
        """record: an IterationRecord; line: the same as JSON. Never raises: outputs go the same way, and they matter
        more."""
        if self._broken:
            return
        try:
            self._add(record, line)
        except Exception:
            log.exception("ledger_failed: no further iteration of this process is kept")
            self._broken = True

    def _add(self, record: Any, line: bytes) -> None:
        if not self._writer.follows(record.epoch, record.n):
            self._close_segment()
            if record.epoch != self._writer.epoch:
                self._writer = SegmentWriter(self._engine, record.epoch)
        if not self._writer.count:
            self._opened = time.monotonic()
        self._writer.add(record.n, line, record.blocks, record.kv.total)
        if self._writer.count >= SEGMENT_RECORDS:
            self._close_segment()

    async def archive(self) -> None:
        """Do what is due, until cancelled. Raises one of broker.UNREACHABLE; the next call goes on from there."""
        while True:
            await asyncio.sleep(ROUND)
            await self.do_due()

    async def do_due(self) -> None:
        """Adopt, close, write and prune, once."""
        if not self._adopted and self.epoch:
            try:
                await self._adopt()
            except (KeyError, TypeError, ValueError) as error:  # of another version
                log.warning("ledger_not_adopted: %s", type(error).__name__)
            self._adopted = True
        if self._writer.count and time.monotonic() - self._opened > OLDEST_OPEN:
            self._close_segment()
        await self.flush()
        if self._disk is not None and time.monotonic() - self._pruned > PRUNE_EVERY:
            await asyncio.to_thread(self._on_disk, self._disk.prune, self._keep.days, self._keep.disk)
            self._pruned = time.monotonic()

    async def close(self) -> None:
        """Write what there is, the open segment, too."""
        self._close_segment()
        await self.flush()

    async def flush(self) -> None:
        """Write the segments that are closed, oldest first."""
        while self._pending:
            pending = self._pending[0]
            if not pending.on_disk and self._disk is not None:
                wrote = await asyncio.to_thread(
                    self._on_disk, self._disk.write, self._engine, pending.info, pending.data
                )
                self._disk_refuses, pending.on_disk = not wrote, True
            keep = self._keep
            await self._broker.keep_segment(self._engine, pending.info, pending.data, keep.iterations, keep.memory)
            if self._pending and self._pending[0] is pending:  # else it was given up meanwhile
                self._pending.popleft()

    def _close_segment(self) -> None:
        if self._writer.count:
            self._pending.append(_Pending(*self._writer.close()))

    def _on_disk(self, work: Callable[..., Any], *args: Any) -> bool:
        """Whether the disk let it happen. One that refuses is said once, until it takes a segment again."""
        try:
            work(*args)
        except OSError as error:
            if not self._disk_refuses:
                log.warning("ledger_not_written: %s; iterations are kept in the broker alone", error.strerror)
            self._disk_refuses = True
            return False
        return True

    # What a process of this name has left that could not close its last segment

    async def _adopt(self) -> None:
        """Make segments of records that are in the stream alone: it ends soon after the engine does."""
        told = [(orjson.loads(line), line) for line in await self._broker.newest_records(self._engine, LEDGER_LENGTH)]
        reader = LedgerReader(self._broker, self._keep.folder)
        kept = {span.epoch: span.last for span in await reader.closed_spans(self._engine)}
        for epoch in sorted({record["epoch"] for record, _ in told if record["epoch"] < self.epoch}):
            rest = [(r, line) for r, line in told if r["epoch"] == epoch and r["n"] > kept.get(epoch, 0)]
            if not rest:
                continue
            blocks = await reader.block_map(self._engine, epoch, rest[0][0]["n"] - 1)
            if blocks is not None:
                self._adopt_epoch(epoch, blocks, rest)

    def _adopt_epoch(self, epoch: int, blocks: BlockMap, rest: Sequence[tuple[dict[str, Any], bytes]]) -> None:
        writer = SegmentWriter(self._engine, epoch, blocks)
        for record, line in rest:
            if not writer.follows(epoch, record["n"]):
                break
            writer.add(record["n"], line, record["blocks"], record["kv"]["total"])
        self._pending.appendleft(_Pending(*writer.close()))
