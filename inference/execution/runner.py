"""Runs batches on the device: one forward pass an iteration.

Knows: the model, its cache, the threads it computes with. Must not know: requests, scheduling, sampling.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from inference.execution.batch import Batch
from inference.execution.cache import KVCache
from inference.execution.models.protocol import Model


class ModelRunner:
    """Owns the model and its KV cache."""

    def __init__(self, model: Model, cache: KVCache) -> None:
        self.model = model
        self.cache = cache
        torch.set_num_threads(compute_threads())

    @torch.inference_mode()
    def execute(self, batch: Batch) -> torch.Tensor:
        """Write the batch's KV and give the logits, float32 [S, vocab_size], a row for each of batch.logits_rows."""
        return self.model.forward(batch, self.cache)

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
