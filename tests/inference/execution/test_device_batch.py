"""Batches on their way to a device: layouts, padding, buffers that are used in turn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.fake_cuda import FakeCuda

from inference.execution.batch import Batch
from inference.execution.device_batch import DeviceBatch, Layout, Placer, Staging


def some_batch(queries: list[int], contexts: list[int], seed: int = 0, every_row: bool = False) -> Batch:
    """A batch of random numbers in the right places; blocks of 16 positions."""
    draw = np.random.default_rng(seed)
    tokens, width = sum(queries), -(-max(contexts) // 16)
    starts = np.cumsum([0, *queries]).astype(np.int32)
    return Batch(
        token_ids=draw.integers(0, 99, tokens),
        positions=draw.integers(0, 99, tokens),
        slots=draw.integers(0, 99, tokens),
        block_tables=draw.integers(0, 99, (len(queries), width), dtype=np.int32),
        query_starts=starts,
        context_lens=np.array(contexts, np.int32),
        logits_rows=np.arange(tokens) if every_row else starts[1:].astype(np.int64) - 1,
    )


def assert_holds(placed: DeviceBatch, batch: Batch) -> None:
    """The batch's arrays, the tables wider perhaps."""
    for name in ("token_ids", "positions", "slots", "logits_rows", "query_starts", "context_lens"):
        expected = torch.from_numpy(getattr(batch, name))
        assert getattr(placed, name).dtype == expected.dtype
        assert torch.equal(getattr(placed, name), expected), name
    width = batch.block_tables.shape[1]
    assert torch.equal(placed.block_tables[:, :width], torch.from_numpy(batch.block_tables))
    assert not placed.block_tables[:, width:].any()


@pytest.mark.parametrize("calls", [None, FakeCuda()])
@pytest.mark.parametrize(("queries", "contexts"), [([1], [1]), ([1, 5, 3], [40, 5, 17]), ([1] * 7, [400] * 7)])
def test_a_batch_arrives_as_it_was(queries: list[int], contexts: list[int], calls: FakeCuda | None) -> None:
    placer = Placer(torch.device("cpu"), calls)
    for seed in range(3):
        batch = some_batch(queries, contexts, seed)
        placed = placer.place(batch)
        assert_holds(placed, batch)
        assert (placed.max_query_len, placed.max_context_len) == (max(queries), max(contexts))
        assert placed.wants_all == (max(queries) == 1)


def test_a_batch_that_wants_no_logits() -> None:
    batch = some_batch([3], [3])
    none = Batch(*(getattr(batch, name) for name in Batch.__slots__[:-1]), logits_rows=np.empty(0, np.int64))  # type: ignore[attr-defined]
    placed = Placer(torch.device("cpu"), FakeCuda()).place(none)
    assert placed.logits_rows.shape == (0,)
    assert not placed.wants_all


def test_on_a_cpu_nothing_is_copied() -> None:
    batch = some_batch([1, 2], [3, 4])
    placed = Placer(torch.device("cpu")).place(batch)
    batch.token_ids[0] = 77
    assert placed.token_ids[0] == 77


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_padding_is_rows_of_one_token_that_see_nothing_and_are_written_nowhere(rows: int) -> None:
    batch, layout = some_batch([1] * rows, [20] * rows), Layout(8, 8, 5, 8)
    buffer = torch.full((layout.nbytes,), 0xFF, dtype=torch.uint8)
    layout.fill(buffer, batch)
    ids, positions, slots, logits, tables, starts, lens = layout.views(buffer)
    assert ids.tolist() == batch.token_ids.tolist() + [0] * (8 - rows)
    assert positions.tolist() == batch.positions.tolist() + [0] * (8 - rows)
    assert slots.tolist() == batch.slots.tolist() + [-1] * (8 - rows)
    assert lens.tolist() == [20] * rows + [0] * (8 - rows)
    assert starts.tolist() == list(range(9))
    assert logits.tolist() == list(range(8))
    assert tables[:rows, :2].tolist() == batch.block_tables.tolist()
    assert not tables[:rows, 2:].any()
    assert not tables[rows:].any()


def test_tables_are_cut_to_the_layout() -> None:
    """Blocks past the contexts that a layout is for may be held already; nobody reads them."""
    batch, layout = some_batch([1], [100]), Layout(1, 1, 3, 1)
    buffer = torch.zeros(layout.nbytes, dtype=torch.uint8)
    layout.fill(buffer, batch)
    assert list(layout.views(buffer))[4].tolist() == batch.block_tables[:, :3].tolist()


@pytest.mark.parametrize("layout", [Layout(1, 1, 1, 0), Layout(3, 2, 5, 1), Layout(64, 64, 512, 64)])
def test_arrays_are_aligned_and_apart(layout: Layout) -> None:
    buffer = torch.zeros(layout.nbytes, dtype=torch.uint8)
    end = 0
    for view in layout.views(buffer):
        begin = view.data_ptr() - buffer.data_ptr()
        assert view.numel() == 0 or (begin % 16 == 0 and begin >= end)
        end = max(end, begin + view.numel() * view.element_size())
    assert end <= layout.nbytes


def test_a_buffer_is_written_again_only_after_its_copy() -> None:
    calls = FakeCuda()
    staging = Staging(calls)
    batch = some_batch([1, 1], [9, 9])
    layout = Layout.of(batch)
    target = torch.zeros(layout.nbytes, dtype=torch.uint8)
    for _ in range(4):
        staging.send(batch, layout, target)
    assert calls.calls == [
        "pinned 4096",
        "record 1",
        "pinned 4096",
        "record 2",
        "wait 1",
        "record 3",
        "wait 2",
        "record 4",
    ]


def test_a_buffer_grows_with_its_batches() -> None:
    calls = FakeCuda()
    placer = Placer(torch.device("cpu"), calls)
    for tokens in (3, 3, 2000, 2000, 5):
        batch = some_batch([tokens], [tokens])
        assert_holds(placer.place(batch), batch)
    assert [call for call in calls.calls if "pinned" in call] == ["pinned 4096"] * 2 + ["pinned 65536"] * 2
