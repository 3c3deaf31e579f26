"""Paged attention in Triton where every sequence has one query token: split over the context, then merged.

Knows: block tables, how many programs fill a chip. Must not know: models, streams, graphs.
A program is one KV head of one sequence over one share of its context (Flash-Decoding, Dao et al. 2023): a few long
contexts keep the whole chip busy. Its rows are the query heads of the group, which share each key and value they read.
How many shares there are follows from numbers that the host has; where they begin, from the context's true length on
the device. So a captured launch stays right, and balanced, for any contexts within its bound.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.triton.attention_tile import attend, dot_dtype, vector
from kernels.triton.launch import launch

PROGRAMS = 4  # for each multiprocessor at most, 2 at least: the reads of one hide behind the sums of another
LEAST_SHARE = 256  # positions: less than this is read sooner than merged
MOST_SPLITS = 32
LOG2_E = 1.4426950408889634


@triton.jit
def paged_decode_kernel(
    out_ptr,  # [T, H, D]; written only with one split
    partial_ptr,  # float32 [T, H, SPLITS, D]
    lse_ptr,  # float32 [T, H, SPLITS]: log2 of a share's sum of weights, -inf where the share is empty
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
    SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,  # query heads of a KV head, up to what a matrix product takes
    BLOCK_N: tl.constexpr,  # positions between two softmax updates
    BLOCK_D: tl.constexpr,  # head_dim, up to a power of two
    VECTOR: tl.constexpr,
    DOT_DTYPE: tl.constexpr,
):
    GROUP: tl.constexpr = HEADS // KV_HEADS
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    token = tl.load(query_starts_ptr + sequence).to(tl.int64)
    if tl.load(query_starts_ptr + sequence + 1) <= token:
        return
    context_len = tl.load(context_lens_ptr + sequence)
    tiles = tl.cdiv(context_len, BLOCK_N)
    share = tl.cdiv(tiles, SPLITS)
    first_tile = split * share
    last_tile = tl.minimum(first_tile + share, tiles)

    member = tl.arange(0, BLOCK_M)
    dim = tl.arange(0, BLOCK_D)
    head = kv_head * GROUP + member
    mask = (member < GROUP)[:, None] & (dim < HEAD_DIM)[None, :]
    place = (token * HEADS + head) * SPLITS + split
    if SPLITS > 1 and first_tile >= last_tile:
        tl.store(lse_ptr + place, tl.full([BLOCK_M], float("-inf"), tl.float32), mask=member < GROUP)
        return
    query_offset = token * query_stride + head[:, None] * HEAD_DIM + dim[None, :]
    query = tl.load(query_ptr + query_offset, mask=mask, other=0.0).to(DOT_DTYPE)
    limit = tl.zeros([BLOCK_M], tl.int32) + context_len
    acc, total, top = attend(
        query, limit, first_tile, last_tile, context_len, kv_head, block_tables_ptr + sequence * table_stride,
        key_cache_ptr, value_cache_ptr, scale_log2,
        KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_M, BLOCK_N, BLOCK_D, VECTOR, DOT_DTYPE,
    )  # fmt: skip
    # Only a row of padding, whose context is empty, has a sum of 0: it gets zeros.
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    if SPLITS == 1:
        out_offset = (token * HEADS + head)[:, None] * HEAD_DIM + dim[None, :]
        tl.store(out_ptr + out_offset, acc.to(out_ptr.dtype.element_ty), mask=mask)
    else:
        tl.store(partial_ptr + place[:, None] * HEAD_DIM + dim[None, :], acc, mask=mask)
        tl.store(lse_ptr + place, top + tl.log2(total), mask=member < GROUP)


@triton.jit
def merge_splits_kernel(
    out_ptr,  # [T, H, D]
    partial_ptr,  # float32 [T, H, SPLITS, D]; nothing where the share is empty
    lse_ptr,  # float32 [T, H, SPLITS]
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * HEADS + tl.program_id(1)
    split = tl.arange(0, SPLITS)
    dim = tl.arange(0, BLOCK_D)
    lse = tl.load(lse_ptr + row * SPLITS + split)
    used = lse != float("-inf")
    top = tl.max(lse, 0)
    weights = tl.where(used, tl.exp2(lse - tl.where(top == float("-inf"), 0.0, top)), 0.0)
    mask = used[:, None] & (dim < HEAD_DIM)[None, :]
    partial = tl.load(partial_ptr + (row * SPLITS + split)[:, None] * HEAD_DIM + dim[None, :], mask=mask, other=0.0)
    total = tl.sum(weights, 0)
    out = tl.sum(partial * weights[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + row * HEAD_DIM + dim, out.to(out_ptr.dtype.element_ty), mask=dim < HEAD_DIM)


def decode_splits(sequences: int, kv_heads: int, max_context_len: int, processors: int) -> int:
    """Shares of each context, a power of two: as many as give the chip PROGRAMS a multiprocessor, none too short."""
    wanted = PROGRAMS * processors // max(1, sequences * kv_heads)
    most = min(wanted, max_context_len // LEAST_SHARE, MOST_SPLITS)
    return 1 << max(0, most.bit_length() - 1)


def decode_tiles(group: int, head_dim: int, dtype: torch.dtype) -> dict[str, int]:
    """Tile sizes by rule: the fewest rows the tensor cores know, for wide heads fewer positions."""
    block_d = max(16, triton.next_power_of_2(head_dim))
    wide = dtype == torch.float32  # its products keep their operands in registers
    return {
        "BLOCK_M": max(16, triton.next_power_of_2(group)),
        "BLOCK_N": (64 if block_d <= (64 if wide else 128) else 32) // (2 if wide else 1),
        "BLOCK_D": block_d,
        "num_warps": 4,
    }


@cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a chip; a handful in the interpreter, so that its tests split too."""
    if device.type != "cuda":
        return 8
    return torch.cuda.get_device_properties(device).multi_processor_count


def paged_decode(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    splits: int,
) -> torch.Tensor:
    """As ops.paged_attention says, for at most one query token a sequence. splits: a power of two."""
    tokens, heads, head_dim = query.shape
    _, kv_heads, block_size, _ = value_cache.shape
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    partial = lse = out
    if splits > 1:
        partial = torch.empty((tokens, heads, splits, head_dim), dtype=torch.float32, device=query.device)
        lse = torch.empty((tokens, heads, splits), dtype=torch.float32, device=query.device)
    tiles = decode_tiles(heads // kv_heads, head_dim, value_cache.dtype)
    launch(
        paged_decode_kernel, (context_lens.numel(), kv_heads, splits),
        out, partial, lse, query, key_cache, value_cache, block_tables, query_starts, context_lens,
        scale * LOG2_E, query.stride(0), block_tables.stride(0),
        HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, SPLITS=splits, **tiles,
        VECTOR=vector(block_size, value_cache.dtype), DOT_DTYPE=dot_dtype(value_cache.dtype),
    )  # fmt: skip
    if splits > 1:
        launch(
            merge_splits_kernel, (tokens, heads),
            out, partial, lse, HEADS=heads, HEAD_DIM=head_dim, SPLITS=splits, BLOCK_D=tiles["BLOCK_D"], num_warps=4,
        )  # fmt: skip
    return out
