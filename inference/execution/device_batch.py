"""A batch on the device, as models and kernels take it, and how it gets there.

Knows: arrays and tensors. Must not know: models, requests.
On a GPU all arrays of a batch travel in one copy out of pinned memory, and the host does not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from inference.execution.batch import Batch
from inference.execution.cuda import Cuda, DeviceCalls, Event

_ALIGNED = 16  # bytes: Triton compiles a kernel anew for pointers that are less aligned
_BLOCKS = 16  # widths of block tables are multiples of it, for the same reason: their stride


class DeviceBatch(NamedTuple):
    """The arrays of a `Batch`, and bounds of its lengths for `kernels.ops.paged_attention`."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    logits_rows: torch.Tensor
    block_tables: torch.Tensor
    query_starts: torch.Tensor
    context_lens: torch.Tensor
    max_query_len: int
    max_context_len: int

    @property
    def wants_all(self) -> bool:
        """Whether each token row's logits are wanted."""
        return self.logits_rows.numel() == self.token_ids.numel()


class Layout(NamedTuple):
    """Where a batch of this size has its arrays in one buffer of bytes."""

    tokens: int
    rows: int
    blocks: int  # width of the block tables
    logits: int

    @classmethod
    def of(cls, batch: Batch) -> Layout:
        rows, blocks = batch.block_tables.shape
        return cls(len(batch.token_ids), rows, _up_to(blocks, _BLOCKS), len(batch.logits_rows))

    @property
    def _shapes(self) -> tuple[tuple[torch.dtype, tuple[int, ...]], ...]:
        """Of the arrays, in the order of DeviceBatch."""
        long, short = torch.int64, torch.int32
        tokens, rows = (self.tokens,), (self.rows,)
        longs = (long, tokens), (long, tokens), (long, tokens), (long, (self.logits,))
        return *longs, (short, (self.rows, self.blocks)), (short, (self.rows + 1,)), (short, rows)

    @property
    def nbytes(self) -> int:
        return sum(_up_to(_nbytes(dtype, shape), _ALIGNED) for dtype, shape in self._shapes)

    def views(self, buffer: torch.Tensor) -> Iterator[torch.Tensor]:
        """The arrays in a buffer of uint8 [nbytes or more]."""
        start = 0
        for dtype, shape in self._shapes:
            size = _nbytes(dtype, shape)
            yield buffer[start : start + size].view(dtype).view(shape)
            start += _up_to(size, _ALIGNED)

    def fill(self, buffer: torch.Tensor, batch: Batch) -> None:
        """Write a batch that has at most this size. What it does not fill is padding that does no harm: one-token rows
        with no context, whose KV is written nowhere (slot -1).

        The padding stands behind the batch, so its tokens must be those of rows of their own: a batch that is smaller
        than the layout has one token a row.
        """
        ids, positions, slots, logits, tables, starts, lens = (view.numpy() for view in self.views(buffer))
        tokens, rows = len(batch.token_ids), len(batch.context_lens)
        width = min(self.blocks, batch.block_tables.shape[1])  # the rest of a table is never read
        for target, values, rest in (
            (ids, batch.token_ids, 0),
            (positions, batch.positions, 0),
            (slots, batch.slots, -1),
            (lens, batch.context_lens, 0),
        ):
            target[: len(values)], target[len(values) :] = values, rest
        tables[:rows, :width], tables[:rows, width:], tables[rows:] = batch.block_tables[:, :width], 0, 0
        starts[: rows + 1], starts[rows + 1 :] = batch.query_starts, tokens + np.arange(1, self.rows - rows + 1)
        wanted = len(batch.logits_rows)
        logits[:wanted], logits[wanted:] = batch.logits_rows, tokens + np.arange(self.logits - wanted)


class Staging:
    """Pinned buffers, used in turn, so that one is written while the other may still be read by the device."""

    def __init__(self, calls: DeviceCalls, buffers: int = 2) -> None:
        self._calls = calls
        self._buffers: list[tuple[torch.Tensor, Event] | None] = [None] * buffers
        self._next = 0

    def send(self, batch: Batch, layout: Layout, target: torch.Tensor) -> None:
        """Copy the batch into `target`, uint8 on the device, in this layout. The host goes on at once."""
        nbytes = layout.nbytes
        pinned, copied = self._free(nbytes)
        layout.fill(pinned, batch)
        target[:nbytes].copy_(pinned[:nbytes], non_blocking=True)
        copied.record()

    def _free(self, nbytes: int) -> tuple[torch.Tensor, Event]:
        """A buffer of that size or more, with the event to be recorded behind its copy."""
        place, self._next = self._next, (self._next + 1) % len(self._buffers)
        found = self._buffers[place]
        if found is not None:
            found[1].synchronize()  # of the copy before the last one: hardly ever a wait
            if found[0].numel() >= nbytes:
                return found
        size = max(4096, 1 << (nbytes - 1).bit_length())
        made = self._calls.pinned(size), self._calls.event() if found is None else found[1]
        self._buffers[place] = made
        return made


class Placer:
    """Brings batches to one device."""

    def __init__(self, device: torch.device, calls: DeviceCalls | None = None) -> None:
        if calls is None and device.type == "cuda":
            calls = Cuda(device)
        self._device = device
        self._staging = None if calls is None else Staging(calls)

    def place(self, batch: Batch) -> DeviceBatch:
        """The batch there. On a CPU, tensors over its own arrays."""
        query_len, context_len = int(np.diff(batch.query_starts).max()), int(batch.context_lens.max())
        if self._staging is None:
            arrays = (torch.from_numpy(array).to(self._device) for array in _arrays(batch))
            return DeviceBatch(*arrays, max_query_len=query_len, max_context_len=context_len)
        layout = Layout.of(batch)
        target = torch.empty(layout.nbytes, dtype=torch.uint8, device=self._device)
        self._staging.send(batch, layout, target)
        return DeviceBatch(*layout.views(target), max_query_len=query_len, max_context_len=context_len)


def _arrays(batch: Batch) -> tuple[np.ndarray, ...]:
    return (
        *(batch.token_ids, batch.positions, batch.slots, batch.logits_rows),
        *(batch.block_tables, batch.query_starts, batch.context_lens),
    )


def _nbytes(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return dtype.itemsize * int(np.prod(shape))


def _up_to(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
