"""What the runner asks of a model. The native decoder and the scripted model both answer to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from inference.execution.batch import Batch
    from inference.execution.cache import KVCache
    from inference.execution.device_batch import DeviceBatch


class Model(Protocol):
    """A decoder. `forward` writes the batch's KV into the cache and returns float32 logits [S, vocab_size],
    one row for each of `batch.logits_rows`."""

    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]

    def new_cache(self, num_blocks: int, block_size: int) -> KVCache: ...

    def kv_bytes_per_block(self, block_size: int) -> int: ...

    def forward(self, batch: Batch, cache: KVCache) -> torch.Tensor: ...


@runtime_checkable
class DeviceModel(Model, Protocol):
    """One whose pass over a batch that is on the device already reads nothing on the host and never waits for the
    device, so that it can be recorded as a graph. `compute` gives what `forward` gives."""

    def compute(self, inputs: DeviceBatch, cache: KVCache) -> torch.Tensor: ...
