"""A batch on the device, as the kernels take it.

Knows: arrays and tensors. Must not know: models, requests.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from inference.execution.batch import Batch


class DeviceBatch(NamedTuple):
    """The part of a batch that every attention layer needs; see `kernels.ops.paged_attention`."""

    slots: torch.Tensor
    block_tables: torch.Tensor
    query_starts: torch.Tensor
    context_lens: torch.Tensor
    max_query_len: int
    max_context_len: int

    @classmethod
    def of(cls, batch: Batch, device: torch.device) -> DeviceBatch:
        arrays = (batch.slots, batch.block_tables, batch.query_starts, batch.context_lens)
        return cls(
            *(placed(array, device) for array in arrays),
            max_query_len=int(np.diff(batch.query_starts).max()),
            max_context_len=int(batch.context_lens.max()),
        )


def placed(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)
