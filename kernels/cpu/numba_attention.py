"""Decode attention for a CPU without a compiler, compiled by numba: one query token a sequence, through block tables.

Knows: numpy arrays. Must not know: torch. bfloat16 comes as uint16 bits and float32 as uint32 bits, so that one source
serves both: bits << shift, looked at as float32. Positions past the context are never read: they may hold NaN.
"""

from __future__ import annotations

import numpy as np
from numba import get_num_threads, njit, prange, set_num_threads

# Sums may be reordered, but NaN and infinity mean what they mean.
_FLAGS = {"contract", "reassoc", "nsz", "arcp"}


@njit(fastmath=_FLAGS, inline="always")
def _exp_in_place(x, power_bits, power):
    """x[i] = exp(x[i]) for x[i] <= 0, by 2 ** n * polynomial, so that the loop vectorises; below -87 it is 0."""
    for i in range(x.size):
        shifted = x[i] * np.float32(1.44269504) + np.float32(0.5)
        n = np.floor(max(shifted, np.float32(-127.0)))
        power_bits[i] = np.uint32(np.int32(n) + 127) << np.uint32(23)
        r = x[i] - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
        p = np.float32(1.9875691500e-4)
        p = p * r + np.float32(1.3981999507e-3)
        p = p * r + np.float32(8.3334519073e-3)
        p = p * r + np.float32(4.1665795894e-2)
        p = p * r + np.float32(1.6666665459e-1)
        p = p * r + np.float32(5.0000001201e-1)
        p = p * r * r + r + np.float32(1.0)
        x[i] = np.float32(0.0) if x[i] < np.float32(-87.0) else p * power[i]


@njit(parallel=True, fastmath=_FLAGS, cache=True)
def _decode(query, keys, values, shift, tables, context_lens, scale, out):
    sequences, heads, dim = query.shape
    _, kv_heads, block_size, _ = values.shape
    group = heads // kv_heads
    for task in prange(sequences * kv_heads):
        r, kv_head = task // kv_heads, task % kv_heads
        key_bits = np.empty((dim, block_size), np.uint32)
        value_bits = np.empty((block_size, dim), np.uint32)
        power_bits = np.empty(block_size, np.uint32)
        key, value, power = key_bits.view(np.float32), value_bits.view(np.float32), power_bits.view(np.float32)
        scores = np.empty(block_size, np.float32)
        acc = np.zeros((group, dim), np.float32)
        top = np.full(group, -np.inf, np.float32)
        total = np.zeros(group, np.float32)
        context = context_lens[r]
        for first in range(0, context, block_size):
            block = tables[r, first // block_size]
            n = min(block_size, context - first)
            for d in range(dim):
                for p in range(n):
                    key_bits[d, p] = np.uint32(keys[block, kv_head, d, p]) << shift
            for p in range(n):
                for d in range(dim):
                    value_bits[p, d] = np.uint32(values[block, kv_head, p, d]) << shift
            for g in range(group):
                weights = scores[:n]
                weights[:] = np.float32(0.0)
                for d in range(dim):
                    q = query[r, kv_head * group + g, d] * scale
                    for p in range(n):
                        weights[p] += q * key[d, p]
                most = top[g]
                for p in range(n):
                    most = max(most, weights[p])
                for p in range(n):
                    weights[p] -= most
                _exp_in_place(weights, power_bits, power)
                decay = np.exp(top[g] - most)
                top[g] = most
                total[g] = total[g] * decay + weights.sum()
                for d in range(dim):
                    acc[g, d] *= decay
                for p in range(n):
                    for d in range(dim):
                        acc[g, d] += weights[p] * value[p, d]
        for g in range(group):
            for d in range(dim):
                out[r, kv_head * group + g, d] = acc[g, d] / total[g]


def decode(
    query: np.ndarray,
    key_bits: np.ndarray,
    value_bits: np.ndarray,
    tables: np.ndarray,
    context_lens: np.ndarray,
    scale: float,
    threads: int,
) -> np.ndarray:
    """Attention of query float32 [R, H, D], one token a sequence, over caches as uint16 or uint32 bits: [R, H, D]."""
    shift = np.uint32(16 if key_bits.dtype == np.uint16 else 0)
    out = np.empty_like(query)
    before = get_num_threads()
    set_num_threads(min(threads, before))
    try:
        _decode(query, key_bits, value_bits, shift, tables, context_lens, np.float32(scale), out)
    finally:
        set_num_threads(before)
    return out
