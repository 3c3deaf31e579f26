"""From a schedule to the flat arrays of a batch.

Knows: requests' ids, positions and block tables. Must not know: torch, why a row is in the batch.
Block tables of running requests are kept in one array, a row a seat: an iteration writes only what is new.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inference.execution.batch import Batch
from inference.scheduling.plan import ScheduledRow
from inference.scheduling.request import Request


class BatchBuilder:
    """Builds batches for a scheduler with `max_num_seqs` seats."""

    def __init__(self, max_num_seqs: int, block_size: int) -> None:
        self._block_size = block_size
        self._tables = np.zeros((max_num_seqs, 8), dtype=np.int32)  # zeros past each seat's blocks
        # The list that is copied into each seat's row. A preempted request gets a new one, so identity tells all.
        self._sources: list[list[int] | None] = [None] * max_num_seqs
        self._written = [0] * max_num_seqs

    def build(self, rows: Sequence[ScheduledRow]) -> Batch:
        """The batch of one iteration. `rows` is not empty. The arrays are the caller's."""
        counts = np.array([row.num_tokens for row in rows], dtype=np.int64)
        starts = np.array([row.start for row in rows], dtype=np.int64)
        query_starts = np.zeros(len(rows) + 1, dtype=np.int32)
        np.cumsum(counts, out=query_starts[1:])
        longest = max([self._write_table(row.request) for row in rows])
        tables = self._tables[[row.request.seat for row in rows], :longest]
        # The position of token t of row r: the row's start, and how far t is behind the row's first token.
        of_row = np.repeat(np.arange(len(rows)), counts)
        positions = np.arange(query_starts[-1], dtype=np.int64) + (starts - query_starts[:-1])[of_row]
        blocks = tables[of_row, positions // self._block_size].astype(np.int64)
        return Batch(
            token_ids=_token_ids(rows),
            positions=positions,
            slots=blocks * self._block_size + positions % self._block_size,
            block_tables=tables,
            query_starts=query_starts,
            context_lens=(starts + counts).astype(np.int32),
            logits_rows=_logits_rows(rows, query_starts[1:]),
        )

    def _write_table(self, request: Request) -> int:
        """Bring the seat's table up to date; its length in blocks."""
        seat, source = request.seat, request.block_table
        length, written = len(source), self._written[seat]
        if self._sources[seat] is not source:
            self._tables[seat, :written] = 0
            self._sources[seat], written = source, 0
        if length > self._tables.shape[1]:
            self._widen(length)
        if length > written:
            self._tables[seat, written:length] = source[written:]
        self._written[seat] = length
        return length

    def _widen(self, length: int) -> None:
        wider = np.zeros((len(self._tables), max(length, 2 * self._tables.shape[1])), dtype=np.int32)
        wider[:, : self._tables.shape[1]] = self._tables
        self._tables = wider


def _token_ids(rows: Sequence[ScheduledRow]) -> np.ndarray:
    ids: list[int] = []
    for request, start, count, _, drafts in rows:
        known = count - len(drafts)
        if known == 1 and start >= len(request.prompt_ids):
            ids.append(request.output_ids[start - len(request.prompt_ids)])
        else:
            ids += request.tokens(start, start + known)
        ids += drafts
    return np.array(ids, dtype=np.int64)


def _logits_rows(rows: Sequence[ScheduledRow], ends: np.ndarray) -> np.ndarray:
    """Int64, the last token rows of each sequence, as many as it wants. ends: int32 [R], where each sequence ends."""
    wanted = np.array([row.wanted for row in rows], dtype=np.int64)
    before = np.cumsum(wanted)  # logits rows up to each sequence's end
    return np.arange(before[-1]) + np.repeat(ends - before, wanted)
