"""From a schedule to the flat arrays of a batch.

Knows: requests' ids, positions and block tables. Must not know: torch, why a row is in the batch.
Block tables of running requests are kept in one array, a row a seat: an iteration only writes what is new.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inference.execution.batch import Batch
from inference.scheduling.request import Request
from inference.scheduling.scheduler import ScheduledRow


class BatchBuilder:
    """Builds batches for a scheduler with `max_num_seqs` seats."""

    def __init__(self, max_num_seqs: int, block_size: int) -> None:
        self._block_size = block_size
        self._tables = np.zeros((max_num_seqs, 8), dtype=np.int32)
        self._owners: list[tuple[Request | None, int]] = [(None, 0)] * max_num_seqs  # with num_preemptions
        self._written = [0] * max_num_seqs

    def build(self, rows: Sequence[ScheduledRow]) -> Batch:
        """The batch of one iteration. `rows` is not empty."""
        counts = np.array([row.num_tokens for row in rows], dtype=np.int32)
        query_starts = np.zeros(len(rows) + 1, dtype=np.int32)
        np.cumsum(counts, out=query_starts[1:])
        longest = max(self._write_table(row.request) for row in rows)
        tables = self._tables[[row.request.seat for row in rows], :longest]
        starts = np.array([row.start for row in rows], dtype=np.int64)
        # Position of token t of row r: the row's start plus how far t is behind the row's first token.
        of_row = np.repeat(np.arange(len(rows)), counts)
        positions = np.arange(query_starts[-1], dtype=np.int64) - query_starts[of_row] + starts[of_row]
        blocks = tables[of_row, positions // self._block_size].astype(np.int64)
        return Batch(
            token_ids=np.array([i for row in rows for i in _token_ids(row)], dtype=np.int64),
            positions=positions,
            slots=blocks * self._block_size + positions % self._block_size,
            block_tables=tables,
            query_starts=query_starts,
            context_lens=(starts + counts).astype(np.int32),
            logits_rows=query_starts[1:][[row.samples for row in rows]].astype(np.int64) - 1,
        )

    def _write_table(self, request: Request) -> int:
        """Bring the seat's table up to date; its length in blocks."""
        seat, length = request.seat, len(request.block_table)
        owner = (request, request.num_preemptions)
        if self._owners[seat] != owner:
            self._owners[seat] = owner
            self._written[seat] = 0
        if length > self._tables.shape[1]:
            wider = np.zeros((len(self._tables), max(length, 2 * self._tables.shape[1])), dtype=np.int32)
            wider[:, : self._tables.shape[1]] = self._tables
            self._tables = wider
        written = self._written[seat]
        if written < length:
            self._tables[seat, written:length] = request.block_table[written:]
            self._written[seat] = length
        return length


def _token_ids(row: ScheduledRow) -> Sequence[int]:
    request, start, end = row.request, row.start, row.start + row.num_tokens
    prompt = len(request.prompt_ids)
    if start >= prompt:
        return request.output_ids[start - prompt : end - prompt]
    return [*request.prompt_ids[start:end], *request.output_ids[: max(0, end - prompt)]]
