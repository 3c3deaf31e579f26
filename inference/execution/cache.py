"""The KV cache of a model: a key and a value cache for each layer, in blocks.

Knows: tensors and their size. Must not know: which request holds which block (the block pool does).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inference.config import EngineConfig
from inference.execution.memory import kv_memory
from inference.execution.models.errors import ModelError
from inference.execution.models.protocol import Model
from kernels import ops


@dataclass(frozen=True, slots=True)
class KVCache:
    """`layers[i]` is layer i's (key cache, value cache), each [num_blocks, ...] in the layout of `kernels.ops`."""

    layers: list[tuple[torch.Tensor, torch.Tensor]]
    num_blocks: int
    block_size: int

    @classmethod
    def new(
        cls,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> KVCache:
        layers = [
            ops.new_kv_cache(num_blocks, block_size, kv_heads, head_dim, dtype, device) for _ in range(num_layers)
        ]
        return cls(layers, num_blocks, block_size)


def num_kv_blocks(config: EngineConfig, model: Model) -> int:
    """Blocks of the pool: `kv_blocks`, or as many as the memory for them holds (see memory.py), but no more than all
    seats can ever fill.

    Raises ModelError where the memory does not hold a single block.
    """
    if config.kv_blocks is not None:
        return config.kv_blocks
    block_bytes = model.kv_bytes_per_block(config.block_size)
    memory = kv_memory(config, model)
    blocks = memory // block_bytes
    if blocks < 1:
        raise ModelError(
            f"kv_memory is {memory} bytes; one block of {config.block_size} positions takes {block_bytes}."
        )
    longest = min(config.max_model_len or model.max_model_len, model.max_model_len)
    return min(blocks, config.max_num_seqs * -(-longest // config.block_size))
