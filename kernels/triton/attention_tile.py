"""What both attentions in Triton do with one stretch of a context: the online softmax over tiles of positions.

Knows: block tables, the layout of the cache, tiles. Must not know: sequences, which rows of a batch these are.
After FlashAttention-2 (Dao 2023) over the block tables of PagedAttention (Kwon et al. 2023).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton import knobs


@triton.jit
def attend(
    query,  # [BLOCK_M, BLOCK_D] in DOT_DTYPE, zeros past the head
    limit,  # [BLOCK_M]: a row sees positions below it
    first_tile,  # tiles of BLOCK_N positions: first_tile .. last_tile - 1, of which each row sees at least one position
    last_tile,
    end,  # no position from here on is loaded
    kv_head,
    table_ptr,  # the sequence's block table
    key_cache_ptr,
    value_cache_ptr,
    scale_log2,  # scale * log2(e): weights are powers of two
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    VECTOR: tl.constexpr,  # positions of a block that are loaded at once
    DOT_DTYPE: tl.constexpr,
):
    """Weighted values [BLOCK_M, BLOCK_D], not divided yet; sums of weights and highest scores [BLOCK_M]."""
    dim = tl.arange(0, BLOCK_D)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    # Keys lie position by position, so a mask that could end anywhere would make every load a single number. It ends
    # where a vector does; what that reads beyond `end` is in the same block, may be NaN, and its score is masked.
    reach = tl.cdiv(end, VECTOR) * VECTOR
    for tile in range(first_tile, last_tile):
        position = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        readable = position < reach
        block = tl.load(table_ptr + position // BLOCK_SIZE, mask=readable, other=0)
        block = tl.max_constancy(block, VECTOR)
        # 64 bits: a cache of 32,768 blocks and more has offsets beyond 32.
        slab = (block.to(tl.int64) * KV_HEADS + kv_head) * (HEAD_DIM * BLOCK_SIZE)
        offset = position % BLOCK_SIZE
        key_offset = (slab + offset)[None, :] + dim[:, None] * BLOCK_SIZE
        key = tl.load(key_cache_ptr + key_offset, mask=readable[None, :] & (dim < HEAD_DIM)[:, None], other=0.0)
        scores = tl.dot(query, key.to(DOT_DTYPE), input_precision="ieee") * scale_log2
        scores = tl.where(position[None, :] < limit[:, None], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new_top[:, None])
        decay = tl.exp2(top - new_top)
        total = total * decay + tl.sum(weights, 1)
        # Unused slots may hold NaN, and 0 * NaN is NaN: they are not loaded.
        value_offset = (slab + offset * HEAD_DIM)[:, None] + dim[None, :]
        value_mask = (position < end)[:, None] & (dim < HEAD_DIM)[None, :]
        value = tl.load(value_cache_ptr + value_offset, mask=value_mask, other=0.0)
        acc = acc * decay[:, None] + tl.dot(weights.to(DOT_DTYPE), value.to(DOT_DTYPE), input_precision="ieee")
        top = new_top
    return acc, total, top


def vector(block_size: int, dtype: torch.dtype) -> int:
    """Positions that one load of 16 bytes takes: a power of two that divides the block."""
    return min(16 // dtype.itemsize, block_size & -block_size)


def dot_dtype(cache_dtype: torch.dtype) -> tl.dtype:
    """What matrix products read: the cache's dtype; float32 in Triton's interpreter, which multiplies bfloat16 bits."""
    if knobs.runtime.interpret:
        return tl.float32
    return {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[cache_dtype]
