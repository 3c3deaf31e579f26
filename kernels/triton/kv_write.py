"""KV write in Triton: each token's key and value into its slot.

Knows: the layout of the cache. Must not know: which blocks are whose.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.checks import check_cache_layout, check_write_kv, with_contiguous_rows
from kernels.triton.launch import launch


@triton.jit
def kv_write_kernel(
    key_ptr,  # [T, KH, D], rows key_stride apart
    value_ptr,  # [T, KH, D], rows value_stride apart
    key_cache_ptr,  # [num_blocks, KH, D, block_size]
    value_cache_ptr,  # [num_blocks, KH, block_size, D]
    slots_ptr,  # int64 [T]
    key_stride,
    value_stride,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dim = tl.arange(0, BLOCK_D)
    mask = dim < HEAD_DIM
    slot = tl.load(slots_ptr + token)
    slab = (slot // BLOCK_SIZE * KV_HEADS + head) * (HEAD_DIM * BLOCK_SIZE)
    offset = slot % BLOCK_SIZE
    key = tl.load(key_ptr + token * key_stride + head * HEAD_DIM + dim, mask=mask)
    value = tl.load(value_ptr + token * value_stride + head * HEAD_DIM + dim, mask=mask)
    tl.store(key_cache_ptr + slab + dim * BLOCK_SIZE + offset, key.to(key_cache_ptr.dtype.element_ty), mask=mask)
    tl.store(value_cache_ptr + slab + offset * HEAD_DIM + dim, value.to(value_cache_ptr.dtype.element_ty), mask=mask)


def write_kv(
    key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, slots: torch.Tensor
) -> None:
    """As ops.write_kv says."""
    check_write_kv(key, value, key_cache, value_cache, slots)
    check_cache_layout(key_cache, value_cache)
    key, value, slots = with_contiguous_rows(key), with_contiguous_rows(value), slots.contiguous()
    tokens, kv_heads, head_dim = key.shape
    if tokens == 0:
        return
    launch(
        kv_write_kernel, (tokens, kv_heads),
        key, value, key_cache, value_cache, slots, key.stride(0), value.stride(0),
        KV_HEADS=kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=value_cache.shape[2],
        BLOCK_D=triton.next_power_of_2(head_dim), num_warps=1,
    )  # fmt: skip
