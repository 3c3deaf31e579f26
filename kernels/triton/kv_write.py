"""KV write in Triton: each token's key and value into its slot, on request together with the rotation before it.

Knows: the layout of the cache. Must not know: which blocks are whose.
A token with a negative slot belongs to a row of padding and is not written.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.checks import (
    check_cache_layout,
    check_rotary_layout,
    check_rotary_write,
    check_write_kv,
    with_contiguous_rows,
)
from kernels.triton.elementwise import rotate_heads
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
    if slot < 0:
        return
    slab = (slot // BLOCK_SIZE * KV_HEADS + head) * (HEAD_DIM * BLOCK_SIZE)
    offset = slot % BLOCK_SIZE
    key = tl.load(key_ptr + token * key_stride + head * HEAD_DIM + dim, mask=mask)
    value = tl.load(value_ptr + token * value_stride + head * HEAD_DIM + dim, mask=mask)
    tl.store(key_cache_ptr + slab + dim * BLOCK_SIZE + offset, key.to(key_cache_ptr.dtype.element_ty), mask=mask)
    tl.store(value_cache_ptr + slab + offset * HEAD_DIM + dim, value.to(value_cache_ptr.dtype.element_ty), mask=mask)


@triton.jit
def rotary_write_kernel(
    query_ptr,  # [T, H, D], rows query_stride apart, changed in place
    key_ptr,  # [T, KH, D], rows key_stride apart
    value_ptr,  # [T, KH, D], rows value_stride apart
    cos_ptr,  # float32 [T, D / 2]
    sin_ptr,  # float32 [T, D / 2]
    key_cache_ptr,  # [num_blocks, KH, D, block_size]
    value_cache_ptr,  # [num_blocks, KH, block_size, D]
    slots_ptr,  # int64 [T]
    query_stride,
    key_stride,
    value_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a KV head
    HALF: tl.constexpr,  # D / 2
    BLOCK_SIZE: tl.constexpr,
    BLOCK_GROUP: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    HEAD_DIM: tl.constexpr = 2 * HALF
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dim = tl.arange(0, BLOCK_HALF)
    mask = dim < HALF
    cos = tl.load(cos_ptr + token * HALF + dim, mask=mask, other=0.0)
    sin = tl.load(sin_ptr + token * HALF + dim, mask=mask, other=0.0)
    group_ptr = query_ptr + token * query_stride + head * (GROUP * HEAD_DIM)
    rotate_heads(group_ptr, cos[None, :], sin[None, :], GROUP, HALF, BLOCK_GROUP, BLOCK_HALF)
    slot = tl.load(slots_ptr + token)
    if slot < 0:
        return
    key_head_ptr = key_ptr + token * key_stride + head * HEAD_DIM + dim
    first = tl.load(key_head_ptr, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(key_head_ptr + HALF, mask=mask, other=0.0).to(tl.float32)
    slab = (slot // BLOCK_SIZE * KV_HEADS + head) * (HEAD_DIM * BLOCK_SIZE)
    offset = slot % BLOCK_SIZE
    # Rounded to the key's dtype first, as a key that is rotated and then written is.
    dtype = key_ptr.dtype.element_ty
    cache_dtype = key_cache_ptr.dtype.element_ty
    keys_ptr = key_cache_ptr + slab + dim * BLOCK_SIZE + offset
    tl.store(keys_ptr, (first * cos - second * sin).to(dtype).to(cache_dtype), mask=mask)
    tl.store(keys_ptr + HALF * BLOCK_SIZE, (second * cos + first * sin).to(dtype).to(cache_dtype), mask=mask)
    value_head_ptr = value_ptr + token * value_stride + head * HEAD_DIM + dim
    values_ptr = value_cache_ptr + slab + offset * HEAD_DIM + dim
    tl.store(values_ptr, tl.load(value_head_ptr, mask=mask).to(cache_dtype), mask=mask)
    tl.store(values_ptr + HALF, tl.load(value_head_ptr + HALF, mask=mask).to(cache_dtype), mask=mask)


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


def rotary_write_kv(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """As ops.rotary_write_kv says."""
    check_rotary_write(query, key, value, cos, sin, key_cache, value_cache, slots)
    check_rotary_layout(query, key)
    check_cache_layout(key_cache, value_cache)
    value = with_contiguous_rows(value)
    (tokens, heads, _), kv_heads, half = query.shape, key.shape[1], cos.shape[1]
    if tokens == 0:
        return
    launch(
        rotary_write_kernel, (tokens, kv_heads),
        query, key, value, cos.contiguous(), sin.contiguous(), key_cache, value_cache, slots.contiguous(),
        query.stride(0), key.stride(0), value.stride(0),
        KV_HEADS=kv_heads, GROUP=heads // kv_heads, HALF=half, BLOCK_SIZE=value_cache.shape[2],
        BLOCK_GROUP=triton.next_power_of_2(heads // kv_heads), BLOCK_HALF=triton.next_power_of_2(half), num_warps=2,
    )  # fmt: skip
