"""A row that can't be built leaves the batch, and the others stay as they were."""

from __future__ import annotations

from typing import Any

from inference.config import SamplingParams
from inference.execution.batch_builder import BatchBuilder
from inference.execution.isolated_builder import IsolatedBuilder
from inference.scheduling.plan import ScheduledRow
from inference.scheduling.request import Request


def row(seat: int, ids: list[Any]) -> ScheduledRow:
    request = Request(f"r{seat}", ids, SamplingParams(), seed=0, block_table=[seat], seat=seat)
    return ScheduledRow(request, 0, len(ids), True)


def test_the_others_keep_their_order() -> None:
    rows = [row(0, [5, 6]), row(1, ["no id"]), row(2, [7]), row(3, [8, 9])]
    batch, broken = IsolatedBuilder(BatchBuilder(4, 4)).build(rows)
    assert broken == [rows[1]]
    assert batch is not None
    assert (batch.token_ids.tolist(), batch.logits_rows.tolist()) == ([5, 6, 7, 8, 9], [1, 2, 4])
    assert batch.block_tables.ravel().tolist() == [0, 2, 3]


def test_none_is_left() -> None:
    rows = [row(0, ["no id"])]
    assert IsolatedBuilder(BatchBuilder(4, 4)).build(rows) == (None, rows)
