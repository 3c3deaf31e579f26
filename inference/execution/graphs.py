"""Decodes as CUDA graphs: a whole forward pass in one launch (as in vLLM and SGLang).

Knows: sizes of batches, what of a pass must stay where it is. Must not know: layers, requests, torch.cuda.

A graph repeats its launches with the same pointers and numbers. So there is one for each pair of
  a number of rows      1, 2, 4, 8, 16, 24, ...: a batch is padded up to the next one (see `Layout.fill`)
  a bound of contexts   a power of two: kernels divide their work by it, and the block tables are as wide
with inputs in a buffer of its own, into which a batch is copied as a whole. Each is recorded when it is first wanted:
most pairs never are, an engine starts in seconds, and the pass that has to run before a recording is one that was due.

Only batches in which every row is one token and wants its logits run so; all others are launched operator by operator.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import torch

from inference.execution.batch import Batch
from inference.execution.cache import KVCache
from inference.execution.cuda import DeviceCalls
from inference.execution.device_batch import DeviceBatch, Layout, Staging
from inference.execution.models.protocol import DeviceModel

log = logging.getLogger("batchscope.engine")

MOST_ROWS = 512  # beyond, a pass takes the device longer than its launches take the host
SHORTEST_BOUND = 256  # positions


def graph_sizes(max_rows: int) -> list[int]:
    """Numbers of rows for which there are graphs, ascending: close enough that little is computed for padding."""
    largest = min(max_rows, MOST_ROWS)
    return sorted(
        {size for size in (1, 2, 4, *range(8, 256, 8), *range(256, largest, 32)) if size < largest} | {largest}
    )


def context_bound(longest: int, max_model_len: int) -> int:
    """The bound to which contexts of at most `longest` positions belong."""
    return max(longest, min(max(SHORTEST_BOUND, 1 << (longest - 1).bit_length()), max_model_len))


class RecordingError(RuntimeError):
    """A graph could not be recorded. Nothing was computed that may not be computed again."""


@dataclass(frozen=True, slots=True)
class DecodeGraph:
    """layout: of its inputs in `buffer`.  replay: computes the logits of what is there."""

    layout: Layout
    buffer: torch.Tensor
    replay: Callable[[], None]


class DecodeGraphs:
    """The graphs of one model over one cache. `max_rows`: of a batch.

    The logits that `run` gives are valid until it is called again: they lie in one buffer that all graphs write.
    """

    def __init__(self, model: DeviceModel, cache: KVCache, max_rows: int, calls: DeviceCalls) -> None:
        self._model, self._cache, self._calls = model, cache, calls
        self._staging = Staging(calls)
        self._sizes = graph_sizes(max_rows)
        self._logits: torch.Tensor | None = None
        self._graphs: dict[tuple[int, int], DecodeGraph] = {}

    def takes(self, batch: Batch) -> bool:
        rows = len(batch.context_lens)
        return len(batch.token_ids) == len(batch.logits_rows) == rows <= self._sizes[-1]

    def run(self, batch: Batch) -> torch.Tensor:
        """Logits, float32 [R, vocab_size], of a batch that `takes` takes; writes its KV. Raises RecordingError."""
        rows = len(batch.context_lens)
        size = self._sizes[bisect_left(self._sizes, rows)]
        bound = context_bound(int(batch.context_lens.max()), self._model.max_model_len)
        graph = self._graphs.get((size, bound))
        if graph is None:
            layout = Layout(size, size, -(-bound // self._cache.block_size), size)
            buffer = torch.empty(layout.nbytes, dtype=torch.uint8, device=self._calls.device)
            self._staging.send(batch, layout, buffer)
            graph = self._graphs[size, bound] = self._record(layout, buffer, bound)
        else:
            self._staging.send(batch, graph.layout, graph.buffer)
        graph.replay()
        return self._outputs[:rows]

    @property
    def _outputs(self) -> torch.Tensor:
        if self._logits is None:
            shape = self._sizes[-1], self._model.vocab_size
            self._logits = torch.empty(shape, dtype=torch.float32, device=self._calls.device)
        return self._logits

    def _record(self, layout: Layout, buffer: torch.Tensor, bound: int) -> DecodeGraph:
        """A graph over inputs that are in the buffer already. That they are computed more than once changes nothing:
        the same keys and values are written to the same slots."""
        began = time.perf_counter()
        inputs = DeviceBatch(*layout.views(buffer), max_query_len=1, max_context_len=bound)
        outputs = self._outputs[: layout.rows]
        try:
            replay = self._calls.capture(lambda: _compute(self._model, inputs, self._cache, outputs))
        except RuntimeError as error:
            raise RecordingError(f"no graph for {layout.rows} rows and contexts up to {bound}") from error
        seconds = time.perf_counter() - began
        log.info("graph_recorded: %d rows, contexts up to %d, %.2f s", layout.rows, bound, seconds)
        return DecodeGraph(layout, buffer, replay)


def _compute(model: DeviceModel, inputs: DeviceBatch, cache: KVCache, outputs: torch.Tensor) -> None:
    """Into `outputs`: a pass's own logits lie in memory that the next graph overwrites."""
    outputs.copy_(model.compute(inputs, cache))
