"""Paged attention in Triton for prefill and mixed batches, and the choice between it and `paged_decode`.

Knows: block tables, tiles of query tokens. Must not know: models, streams, graphs.
A program is one KV head of BLOCK_Q query tokens of one sequence. Its rows (token x query head of the group, the group
padded to a power of two) share each key and value they read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.checks import check_cache_layout, check_paged_attention, with_contiguous_rows
from kernels.triton.attention_tile import attend, dot_dtype, vector
from kernels.triton.launch import launch
from kernels.triton.paged_decode import LOG2_E, decode_splits, paged_decode, processors


@triton.jit
def paged_attention_kernel(
    out_ptr,  # [T, H, D]
    query_ptr,  # [T, H, D], rows query_stride apart
    key_cache_ptr,  # [num_blocks, KH, D, block_size]
    value_cache_ptr,  # [num_blocks, KH, block_size, D]
    block_tables_ptr,  # int32 [R, M], rows table_stride apart
    query_starts_ptr,  # int32 [R + 1]
    context_lens_ptr,  # int32 [R]
    scale_log2,
    query_stride,
    table_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_Q: tl.constexpr,  # query tokens of a program
    BLOCK_GROUP: tl.constexpr,  # query heads of a KV head, up to a power of two
    BLOCK_N: tl.constexpr,  # positions between two softmax updates
    BLOCK_D: tl.constexpr,  # head_dim, up to a power of two
    VECTOR: tl.constexpr,
    DOT_DTYPE: tl.constexpr,  # what the matrix products read
):
    GROUP: tl.constexpr = HEADS // KV_HEADS
    BLOCK_M: tl.constexpr = BLOCK_Q * BLOCK_GROUP
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    first_token = tl.program_id(2) * BLOCK_Q
    query_start = tl.load(query_starts_ptr + sequence)
    query_len = tl.load(query_starts_ptr + sequence + 1) - query_start
    if first_token >= query_len:
        return
    context_len = tl.load(context_lens_ptr + sequence)

    row = tl.arange(0, BLOCK_M)
    token = first_token + row // BLOCK_GROUP
    member = row % BLOCK_GROUP
    dim = tl.arange(0, BLOCK_D)
    real = (token < query_len) & (member < GROUP)
    head = kv_head * GROUP + member
    mask = real[:, None] & (dim < HEAD_DIM)[None, :]
    global_row = (query_start + token).to(tl.int64)
    query_offset = global_row[:, None] * query_stride + head[:, None] * HEAD_DIM + dim[None, :]
    query = tl.load(query_ptr + query_offset, mask=mask, other=0.0).to(DOT_DTYPE)

    # Positions a row sees; a row past the last token sees what that does, so that no row is empty.
    limit = tl.minimum(context_len - query_len + token + 1, context_len)
    end = tl.minimum(context_len - query_len + first_token + BLOCK_Q, context_len)
    acc, total, _ = attend(
        query, limit, 0, tl.cdiv(end, BLOCK_N), end, kv_head, block_tables_ptr + sequence * table_stride,
        key_cache_ptr, value_cache_ptr, scale_log2,
        KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_M, BLOCK_N, BLOCK_D, VECTOR, DOT_DTYPE,
    )  # fmt: skip
    # Only rows of padding, whose context is empty, have a sum of 0: they get zeros.
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    out_offset = (global_row[:, None] * HEADS + head[:, None]) * HEAD_DIM + dim[None, :]
    tl.store(out_ptr + out_offset, acc.to(out_ptr.dtype.element_ty), mask=mask)


def tile_sizes(group: int, head_dim: int, dtype: torch.dtype) -> dict[str, int]:
    """Tile sizes by rule: as many rows as fit the registers, since all of them share each key that is read.

    float32 products do not run on tensor cores and keep their operands in registers: they take a small tile.
    """
    block_group = triton.next_power_of_2(group)
    block_d = max(16, triton.next_power_of_2(head_dim))
    small = dtype == torch.float32
    rows = 16 if small else 128 if block_d <= 128 else 64
    return {
        "BLOCK_Q": max(1, rows // block_group),
        "BLOCK_GROUP": block_group,
        "BLOCK_N": (64 if block_d <= 64 else 32) // (2 if small else 1),
        "BLOCK_D": block_d,
        "num_warps": 4 if small else 8,
    }


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    max_query_len: int,
    max_context_len: int,
) -> torch.Tensor:
    """As ops.paged_attention says. Neither bound may be less than the longest there is.

    What is launched follows from shapes and the two bounds alone, never from a value on the device.
    """
    check_paged_attention(query, key_cache, value_cache, block_tables, query_starts, context_lens)
    check_cache_layout(key_cache, value_cache)
    if block_tables.stride(1) != 1 or not (query_starts.is_contiguous() and context_lens.is_contiguous()):
        raise ValueError("block tables, query starts and context lengths must be contiguous")
    query = with_contiguous_rows(query)
    _, heads, head_dim = query.shape
    _, kv_heads, block_size, _ = value_cache.shape
    if not query.numel() or not context_lens.numel() or max_query_len < 1:
        return torch.empty(query.shape, dtype=query.dtype, device=query.device)
    numbers = (block_tables, query_starts, context_lens)
    if max_query_len == 1:
        splits = decode_splits(context_lens.numel(), kv_heads, max_context_len, processors(query.device))
        return paged_decode(query, key_cache, value_cache, *numbers, scale, splits)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    tiles = tile_sizes(heads // kv_heads, head_dim, value_cache.dtype)
    launch(
        paged_attention_kernel, (context_lens.numel(), kv_heads, triton.cdiv(max_query_len, tiles["BLOCK_Q"])),
        out, query, key_cache, value_cache, *numbers, scale * LOG2_E, query.stride(0), block_tables.stride(0),
        HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, **tiles,
        VECTOR=vector(block_size, value_cache.dtype), DOT_DTYPE=dot_dtype(value_cache.dtype),
    )  # fmt: skip
    return out
