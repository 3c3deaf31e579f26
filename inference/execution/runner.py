"""Runs batches on the device: one forward pass an iteration.

Knows: the model, its cache, the threads it computes with, when a pass is launched only. Must not know: requests,
scheduling, sampling.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from inference.execution.batch import Batch
from inference.execution.cache import KVCache
from inference.execution.cuda import Cuda, DeviceCalls
from inference.execution.graphs import DecodeGraphs, RecordingError
from inference.execution.models.protocol import DeviceModel, Model

log = logging.getLogger("batchscope.engine")


class ModelRunner:
    """Owns the model and its KV cache.

    max_graph_rows: decodes of at most so many rows run as CUDA graphs, where the model can; 0: none do.
    calls: what a device is asked that computes on its own; None: the model's, where it is one of CUDA.
    is_async: `execute` launches the pass and comes back; whoever reads the logits waits.
    """

    def __init__(self, model: Model, cache: KVCache, max_graph_rows: int = 0, calls: DeviceCalls | None = None) -> None:
        self.model = model
        self.cache = cache
        device = getattr(model, "device", None)
        if calls is None and device is not None and device.type == "cuda":
            calls = Cuda(device)
        self.is_async = calls is not None
        self._marks = None if calls is None else (calls.event(timed=True), calls.event(timed=True))
        has_graphs = calls is not None and max_graph_rows > 0 and isinstance(model, DeviceModel)
        self._graphs = DecodeGraphs(model, cache, max_graph_rows, calls) if has_graphs else None
        torch.set_num_threads(compute_threads())

    @torch.inference_mode()
    def execute(self, batch: Batch) -> torch.Tensor:
        """Write the batch's KV and give the logits, float32 [S, vocab_size], a row for each of batch.logits_rows.

        They are valid until the next call.
        """
        if self._marks is None:
            return self.model.forward(batch, self.cache)
        began, ended = self._marks
        began.record()
        logits = self._forward(batch)
        ended.record()
        return logits

    def _forward(self, batch: Batch) -> torch.Tensor:
        if self._graphs is not None and self._graphs.takes(batch):
            try:
                return self._graphs.run(batch)
            except RecordingError:
                log.exception("graphs_off: decodes go on without CUDA graphs")
                self._graphs = None
        return self.model.forward(batch, self.cache)

    def forward_ms(self) -> float | None:
        """How long the device took for the last pass, in ms; waits for its end. None where `execute` did wait."""
        if self._marks is None:
            return None
        began, ended = self._marks
        ended.synchronize()  # after sampling no wait at all: the tokens were waited for
        return began.elapsed_time(ended)

    @torch.inference_mode()
    def zero(self, blocks: Sequence[int]) -> None:
        """Overwrite what blocks hold: a request that went wrong leaves no NaN behind."""
        for keys, values in self.cache.layers:
            keys[list(blocks)] = 0
            values[list(blocks)] = 0


def compute_threads() -> int:
    """Threads for one forward pass: OMP_NUM_THREADS where it is set, else torch's own choice, which is one a physical
    core, cut to the CPUs that this process may use: torch does not see a container's quota."""
    chosen = torch.get_num_threads()
    if os.environ.get("OMP_NUM_THREADS"):
        return chosen
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(chosen, allowed, _quota()))


def _quota(path: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """CPUs that the control group grants (cgroup v2); a large number where there is no bound."""
    try:
        quota, period = path.read_text().split()[:2]
        return math.ceil(int(quota) / int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return 1 << 16
