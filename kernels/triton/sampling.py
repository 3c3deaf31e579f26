"""Sampling in Triton: the token of each row of logits, so that only ids leave the device.

Knows: logits, temperatures, the race that `reference.sample_rows` describes. Must not know: requests, filters.
The first kernel reads the logits once: each chunk's largest, and the sums of weights of its spans. The second, one
program a row, holds the race of the spans and then reads the ids of the one that won.

Rounding: waits are float64 from the same integers as on a CPU; weights and their sums are float32, and their last bits
depend on who computes them. For a weight that can win (its exponent is above -45) they differ by less than half of
MARGIN, so a winner that leads by MARGIN wins everywhere. Where none does, at most in one draw of 4,096 (MARGIN for
each of the two races), the answer is UNDECIDED, and whoever asked decides on the CPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.checks import check_sample_rows
from kernels.reference import IDS, NUMERICAL_ERROR, SPAN, SPANS, UNDECIDED
from kernels.triton.launch import launch

MARGIN = 2.0**-13  # of a score
SPANS_OF_CHUNK = 16
NO_PLACE = 1 << 30


@triton.jit
def span_sums_kernel(
    peaks_ptr,  # float32 [S, chunks]: each chunk's largest logit, +inf where one is NaN
    places_ptr,  # int32 [S, chunks]: the lowest id that has it
    sums_ptr,  # float32 [S, chunks * CHUNK_SPANS], to the chunk's own peak; written only where a temperature is > 0
    logits_ptr,  # float32 [S, vocab], rows stride apart
    temperatures_ptr,  # float32 [S]
    stride,
    vocab,
    SPAN: tl.constexpr,
    CHUNK_SPANS: tl.constexpr,
    NO_PLACE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    chunks = tl.num_programs(1)
    span = tl.arange(0, CHUNK_SPANS)
    column = (chunk * CHUNK_SPANS + span)[:, None] * SPAN + tl.arange(0, SPAN)[None, :]
    x = tl.load(logits_ptr + row * stride + column, mask=column < vocab, other=float("-inf"))
    x = tl.where(x == x, x, float("inf"))
    peak = tl.max(tl.max(x, 1), 0)
    place = tl.min(tl.min(tl.where(x == peak, column, NO_PLACE), 1), 0)
    tl.store(peaks_ptr + row * chunks + chunk, peak)
    tl.store(places_ptr + row * chunks + chunk, place)
    temperature = tl.load(temperatures_ptr + row)
    if temperature > 0.0:
        base = tl.where(tl.abs(peak) < float("inf"), peak, 0.0)
        sums = tl.sum(tl.exp((x - base) / temperature), 1)
        tl.store(sums_ptr + (row * chunks + chunk) * CHUNK_SPANS + span, sums)


@triton.jit
def waits_of(seed, index, kind, count):
    """Exponentially distributed float64, four for each count of Philox4x64-10 (Salmon et al. 2011)."""
    c0, c1, c2, c3 = tl.philox(seed, count, count * 0 + kind, count * 0 + index, count * 0)
    words = tl.interleave(tl.interleave(c0, c2), tl.interleave(c1, c3))
    bits = (words >> 12).to(tl.int64).to(tl.float64)
    return -tl.log((bits + 0.5) * 2.220446049250313e-16)  # 2 ** -52


@triton.jit
def winner(weights, waits, place, MARGIN: tl.constexpr, NO_PLACE: tl.constexpr):
    """Place of the largest weight by wait, and whether it leads by more than rounding could make up for."""
    scores = weights.to(tl.float64) / waits
    best = tl.max(scores, 0)
    won = tl.min(tl.where(scores == best, place, NO_PLACE), 0)
    close = tl.sum((scores * (1.0 + MARGIN) >= best).to(tl.int32), 0)  # itself among them
    return won, close == 1


@triton.jit
def race_kernel(
    ids_ptr,  # int64 [S]
    logits_ptr,  # float32 [S, vocab], rows stride apart
    temperatures_ptr,  # float32 [S]
    seeds_ptr,  # int64 [S]
    indices_ptr,  # int64 [S]
    peaks_ptr,
    places_ptr,
    sums_ptr,
    stride,
    vocab,
    chunks,
    SPAN: tl.constexpr,
    CHUNK_SPANS: tl.constexpr,
    NO_PLACE: tl.constexpr,
    MARGIN: tl.constexpr,
    KIND_SPANS: tl.constexpr,
    KIND_IDS: tl.constexpr,
    NUMERICAL_ERROR: tl.constexpr,
    UNDECIDED: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,  # chunks, up to a power of two
):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, BLOCK_CHUNKS)
    peaks = tl.load(peaks_ptr + row * chunks + chunk, mask=chunk < chunks, other=float("-inf"))
    places = tl.load(places_ptr + row * chunks + chunk, mask=chunk < chunks, other=NO_PLACE)
    peak = tl.max(peaks, 0)
    token = tl.min(tl.where(peaks == peak, places, NO_PLACE), 0)
    temperature = tl.load(temperatures_ptr + row)
    sound = tl.abs(peak) < float("inf")
    if (temperature > 0.0) & sound:
        seed = tl.load(seeds_ptr + row)
        index = tl.load(indices_ptr + row)
        # Counts begin at 1: the generator counts before it gives.
        span = tl.arange(0, BLOCK_CHUNKS * CHUNK_SPANS)
        there = span < chunks * CHUNK_SPANS
        sums = tl.load(sums_ptr + row * chunks * CHUNK_SPANS + span, mask=there, other=0.0)
        base = tl.load(peaks_ptr + row * chunks + span // CHUNK_SPANS, mask=there, other=float("-inf"))
        sums = sums * tl.exp((base - peak) / temperature)
        count = tl.arange(0, BLOCK_CHUNKS * CHUNK_SPANS // 4).to(tl.int64) + 1
        won, is_clear = winner(sums, waits_of(seed, index, KIND_SPANS, count), span, MARGIN, NO_PLACE)

        column = won * SPAN + tl.arange(0, SPAN)
        x = tl.load(logits_ptr + row * stride + column, mask=column < vocab, other=float("-inf"))
        weights = tl.exp((x - peak) / temperature)
        count = tl.cast(won, tl.int64) * (SPAN // 4) + tl.arange(0, SPAN // 4) + 1
        drawn, is_clear_inside = winner(weights, waits_of(seed, index, KIND_IDS, count), column, MARGIN, NO_PLACE)
        token = tl.where(is_clear & is_clear_inside, drawn, UNDECIDED)
    tl.store(ids_ptr + row, tl.where(sound, token, NUMERICAL_ERROR).to(tl.int64))


def sample_rows(
    logits: torch.Tensor, temperatures: torch.Tensor, seeds: torch.Tensor, indices: torch.Tensor
) -> torch.Tensor:
    """As ops.sample_rows says."""
    check_sample_rows(logits, temperatures, seeds, indices)
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    rows, vocab = logits.shape
    temperatures = temperatures.contiguous()
    ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if not rows:
        return ids
    chunks = triton.cdiv(vocab, SPANS_OF_CHUNK * SPAN)
    peaks = torch.empty((rows, chunks), dtype=torch.float32, device=logits.device)
    places = torch.empty((rows, chunks), dtype=torch.int32, device=logits.device)
    sums = torch.empty((rows, chunks * SPANS_OF_CHUNK), dtype=torch.float32, device=logits.device)
    sizes = {"SPAN": SPAN, "CHUNK_SPANS": SPANS_OF_CHUNK, "NO_PLACE": NO_PLACE}
    launch(
        span_sums_kernel, (rows, chunks),
        peaks, places, sums, logits, temperatures, logits.stride(0), vocab, **sizes, num_warps=8,
    )  # fmt: skip
    launch(
        race_kernel, (rows,),
        ids, logits, temperatures, seeds.contiguous(), indices.contiguous(), peaks, places, sums,
        logits.stride(0), vocab, chunks, **sizes, **race_constants(chunks), num_warps=4,
    )  # fmt: skip
    return ids


def race_constants(chunks: int) -> dict[str, int | float]:
    return {
        "MARGIN": MARGIN,
        "KIND_SPANS": SPANS,
        "KIND_IDS": IDS,
        "NUMERICAL_ERROR": NUMERICAL_ERROR,
        "UNDECIDED": UNDECIDED,
        "BLOCK_CHUNKS": triton.next_power_of_2(chunks),
    }
