"""CPU backend without a C++ compiler: numba for decode attention, torch for all else.

Knows: which part of a batch each of the two serves best. Must not know: how blocks are laid out beyond `reference`.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch

from kernels.reference import (
    add_norm,
    gather_kv,
    rms_norm,
    rotary,
    rotary_write_kv,
    sample_rows,
    silu_mul,
    write_kv,
)

numba_attention: Any = None
try:
    from kernels.cpu import numba_attention
except ImportError:
    logging.getLogger(__name__).warning("neither a C++ compiler nor numba: decode attention gathers, which is slow")

__all__ = [
    "add_norm",
    "paged_attention",
    "rms_norm",
    "rotary",
    "rotary_write_kv",
    "sample_rows",
    "silu_mul",
    "write_kv",
]


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
    """As ops.paged_attention says. Sequences of one query token go to numba together, each longer one to SDPA alone."""
    _check_numbers(query, value_cache, block_tables, query_starts, context_lens)
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    query_lens = query_starts.diff()
    decodes = query_lens == 1 if numba_attention is not None else torch.zeros_like(query_lens, dtype=torch.bool)
    if decodes.any():
        rows = query_starts[:-1][decodes].long()
        out[rows] = _decode(query[rows], key_cache, value_cache, block_tables[decodes], context_lens[decodes], scale)
    for r in torch.nonzero(~decodes & (query_lens > 0)).flatten().tolist():
        rows = slice(int(query_starts[r]), int(query_starts[r + 1]))
        keys, values = gather_kv(key_cache, value_cache, block_tables[r], int(context_lens[r]))
        out[rows] = _prefill(query[rows], keys.to(query.dtype), values.to(query.dtype), scale)
    return out


def _decode(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    out = numba_attention.decode(
        query.float().contiguous().numpy(),
        _bits(key_cache),
        _bits(value_cache),
        tables.contiguous().numpy(),
        context_lens.contiguous().numpy(),
        scale,
        torch.get_num_threads(),
    )
    return torch.from_numpy(out).to(query.dtype)


def _prefill(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """One sequence: query [L, H, D] at the end of keys and values [KH, context, D]."""
    length, context = query.shape[0], keys.shape[1]
    visible = torch.ones(length, context, dtype=torch.bool).tril(context - length)
    attended = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1)[None], keys[None], values[None], visible, scale=scale, enable_gqa=True
    )
    return attended[0].transpose(0, 1)


def _bits(cache: torch.Tensor) -> np.ndarray:
    if cache.dtype == torch.bfloat16:
        return cache.view(torch.int16).numpy().view(np.uint16)
    if cache.dtype == torch.float32:
        return cache.numpy().view(np.uint32)
    raise ValueError(f"CPU kernels take float32 and bfloat16, not {cache.dtype}")


def _check_numbers(
    query: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
) -> None:
    """numba does not check indices: a wrong number must not become a wrong address."""
    blocks, _, block_size, _ = value_cache.shape
    lens = query_starts.diff()
    if query_starts[0] != 0 or query_starts[-1] != query.shape[0] or (lens < 0).any() or (context_lens < lens).any():
        raise ValueError("query starts, context lengths and block tables do not fit together")
    used = torch.arange(block_tables.shape[1]) * block_size < context_lens[:, None]
    if (context_lens > block_tables.shape[1] * block_size).any():
        raise ValueError("query starts, context lengths and block tables do not fit together")
    if ((block_tables < 0) | (block_tables >= blocks))[used].any():
        raise ValueError(f"a block or slot is not in the cache, which has {blocks} blocks")
