"""Paged attention in Triton: prefill, decode and mixed batches in one kernel.

Knows: block tables, tiles, the online softmax. Must not know: models, streams, graphs.
A program is one KV head of BLOCK_Q query tokens of one sequence. Its rows (token x query head of the group, the group
padded to a power of two) share each key and value they read. After FlashAttention-2 (Dao 2023) over the block tables of
PagedAttention (Kwon et al. 2023).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton import knobs

from kernels.checks import check_cache_layout, check_paged_attention, with_contiguous_rows
from kernels.triton.launch import launch


@triton.jit
def paged_attention_kernel(
    out_ptr,  # [T, H, D]
    query_ptr,  # [T, H, D], rows query_stride apart
    key_cache_ptr,  # [num_blocks, KH, D, block_size]
    value_cache_ptr,  # [num_blocks, KH, block_size, D]
    block_tables_ptr,  # int32 [R, M], rows table_stride apart
    query_starts_ptr,  # int32 [R + 1]
    context_lens_ptr,  # int32 [R]
    scale_log2,  # scale * log2(e): weights are powers of two
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
    query = tl.load(query_ptr + query_offset, mask=mask, other=0.0)
    query = (query.to(tl.float32) * scale_log2).to(DOT_DTYPE)

    # Positions a row sees; a row of padding sees what the last token does, so that no row is empty.
    limit = tl.minimum(context_len - query_len + token + 1, context_len)
    end = tl.minimum(context_len - query_len + first_token + BLOCK_Q, context_len)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(0, end, BLOCK_N):
        position = start + tl.arange(0, BLOCK_N)
        used = position < end
        block = tl.load(block_tables_ptr + sequence * table_stride + position // BLOCK_SIZE, mask=used, other=0)
        # 64 bits: a cache of 32,768 blocks and more has offsets beyond 32.
        slab = (block.to(tl.int64) * KV_HEADS + kv_head) * (HEAD_DIM * BLOCK_SIZE)
        offset = position % BLOCK_SIZE
        kv_mask = used[None, :] & (dim < HEAD_DIM)[:, None]
        key_offset = (slab + offset)[None, :] + dim[:, None] * BLOCK_SIZE
        key = tl.load(key_cache_ptr + key_offset, mask=kv_mask, other=0.0)
        scores = tl.dot(query, key.to(DOT_DTYPE), input_precision="ieee")
        scores = tl.where(position[None, :] < limit[:, None], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new_top[:, None])
        decay = tl.exp2(top - new_top)
        total = total * decay + tl.sum(weights, 1)
        # Unused slots may hold NaN, and 0 * NaN is NaN: they are not loaded.
        value_offset = (slab + offset * HEAD_DIM)[:, None] + dim[None, :]
        value = tl.load(value_cache_ptr + value_offset, mask=used[:, None] & (dim < HEAD_DIM)[None, :], other=0.0)
        acc = acc * decay[:, None] + tl.dot(weights.to(DOT_DTYPE), value.to(DOT_DTYPE), input_precision="ieee")
        top = new_top
    out_offset = (global_row[:, None] * HEADS + head[:, None]) * HEAD_DIM + dim[None, :]
    tl.store(out_ptr + out_offset, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=mask)


def tile_sizes(group: int, head_dim: int, max_query_len: int, dtype: torch.dtype) -> dict[str, int]:
    """Tile sizes by rule: a decode takes the fewest rows the tensor cores know, a prefill more, which share their keys.

    float32 products do not run on tensor cores and keep their operands in registers: they take the small tile always.
    """
    block_group = triton.next_power_of_2(group)
    block_d = max(16, triton.next_power_of_2(head_dim))
    small = max_query_len == 1 or dtype == torch.float32
    rows = 16 if small else 64 if block_d <= 128 else 32  # the widest heads would not fit the registers
    return {
        "BLOCK_Q": max(1, rows // block_group),
        "BLOCK_GROUP": block_group,
        "BLOCK_N": 32 if dtype == torch.float32 or block_d > 64 else 64,
        "BLOCK_D": block_d,
        "num_warps": 8 if block_d > 64 and not small else 4,
    }


def dot_dtype(cache_dtype: torch.dtype) -> tl.dtype:
    """What matrix products read: the cache's dtype; float32 in Triton's interpreter, which multiplies bfloat16 bits."""
    if knobs.runtime.interpret:
        return tl.float32
    return {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[cache_dtype]


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
    """As ops.paged_attention says. max_query_len must be no less than the longest query of a sequence."""
    check_paged_attention(query, key_cache, value_cache, block_tables, query_starts, context_lens)
    check_cache_layout(key_cache, value_cache)
    if block_tables.stride(1) != 1 or not (query_starts.is_contiguous() and context_lens.is_contiguous()):
        raise ValueError("block tables, query starts and context lengths must be contiguous")
    query = with_contiguous_rows(query)
    _, heads, head_dim = query.shape
    _, kv_heads, block_size, _ = value_cache.shape
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    tiles = tile_sizes(heads // kv_heads, head_dim, max_query_len, value_cache.dtype)
    grid = (context_lens.numel(), kv_heads, triton.cdiv(max_query_len, tiles["BLOCK_Q"]))
    if 0 in grid:
        return out
    launch(
        paged_attention_kernel, grid,
        out, query, key_cache, value_cache, block_tables, query_starts, context_lens,
        scale * 1.4426950408889634, query.stride(0), block_tables.stride(0),
        HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, **tiles,
        DOT_DTYPE=dot_dtype(value_cache.dtype),
    )  # fmt: skip
    return out
