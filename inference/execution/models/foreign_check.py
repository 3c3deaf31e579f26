"""Proof, at load, that a model runs right over the paged cache: its logits against those it gives without.

Knows: batches made up for the purpose. Must not know: architectures, transformers.
A mistake that this finds: layers that keep a state of their own or mix neighbouring tokens (convolutions, recurrences),
positions counted from the start of a batch, masks that we do not build, scores that are not plain softmax attention.
What it can't find is what begins beyond its few tokens: `foreign_limits` bounds those by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from inference.execution.batch import Batch
from inference.execution.models.errors import ModelError
from inference.execution.models.protocol import Model

BLOCK_SIZE = 4
LENGTHS = (21, 10)
# Tokens of each sequence in one batch after the other: all at once; then chunks that start and end inside of blocks,
# beside the other's, and single tokens, as in decoding.
SCHEDULES = (((21, 10),), ((7, 0), (1, 6), (10, 1), (1, 2), (2, 1)))
EXACT = 1e-3  # in float32
ROUNDED = 0.01, 0.15  # in bfloat16: the least, and what is allowed where nothing tells how much rounding does
TIMES_ROUNDING = 2.5


def trial_sequences(vocab_size: int, longest: int) -> list[list[int]]:
    """Random token ids, the same each time."""
    draw = np.random.default_rng(0)
    return [draw.integers(0, vocab_size, min(length, longest)).tolist() for length in LENGTHS]


def check_logits(
    model: Model,
    dtype: torch.dtype,
    sequences: Sequence[list[int]],
    expected: torch.Tensor,
    otherwise: torch.Tensor | None,
) -> None:
    """Run the sequences through the model in several ways.

    expected, otherwise: float32 [tokens, vocab_size], the model's own logits of all sequences, one after the other,
    with two attentions of transformers; None where there is one only.
    Raises ModelError where the logits are not those expected. In float32 the farthest row must be near. In bfloat16
    rounding sends some rows far off, where it lets another expert be chosen: there the row in the middle counts, and it
    may be a few times as far from what is expected as the two of transformers are from each other.
    """
    exact = dtype == torch.float32
    row = 1.0 if exact else 0.5
    allowed = EXACT if exact else _rounding(expected, otherwise, row)
    for schedule in SCHEDULES:
        got = torch.cat(_run(model, sequences, schedule))
        distance = _distance(got, expected, row)
        if not distance <= allowed:
            raise ModelError(
                "this architecture can't be run right with paged attention: in a trial its logits were off by "
                f"{distance:.2g} of their spread, and {allowed:.2g} is allowed."
            )


def _rounding(expected: torch.Tensor, otherwise: torch.Tensor | None, row: float) -> float:
    least, unknown = ROUNDED
    if otherwise is None:
        return unknown
    return min(max(least, TIMES_ROUNDING * _distance(otherwise, expected, row)), 2 * unknown)


def _run(model: Model, sequences: Sequence[list[int]], schedule: Iterable[tuple[int, ...]]) -> list[torch.Tensor]:
    """Logits of every position of each sequence, computed in the schedule's pieces. Their blocks lie interleaved."""
    width = -(-max(map(len, sequences)) // BLOCK_SIZE)
    tables = np.arange(width * len(sequences), dtype=np.int32)[::-1].reshape(width, len(sequences)).T
    cache = model.new_cache(tables.size, BLOCK_SIZE)
    done = [0] * len(sequences)
    parts: list[list[torch.Tensor]] = [[] for _ in sequences]
    for counts in schedule:
        pieces = [(i, done[i], min(done[i] + n, len(sequences[i]))) for i, n in enumerate(counts)]
        pieces = [piece for piece in pieces if piece[1] < piece[2]]
        if not pieces:
            continue
        logits = model.forward(_batch(sequences, tables, pieces), cache)
        for (i, _, end), part in zip(pieces, logits.split([e - s for _, s, e in pieces]), strict=True):
            parts[i].append(part)
            done[i] = end
    return [torch.cat(rows) for rows in parts]


def _batch(sequences: Sequence[list[int]], tables: np.ndarray, pieces: Sequence[tuple[int, int, int]]) -> Batch:
    """Tokens start:end of some sequences, and the logits of them all."""
    places = [np.arange(start, end) for _, start, end in pieces]
    blocks = [tables[i][place // BLOCK_SIZE] for (i, _, _), place in zip(pieces, places, strict=True)]
    positions = np.concatenate(places)
    return Batch(
        token_ids=np.array([t for i, start, end in pieces for t in sequences[i][start:end]], np.int64),
        positions=positions,
        slots=np.concatenate(blocks).astype(np.int64) * BLOCK_SIZE + positions % BLOCK_SIZE,
        block_tables=np.ascontiguousarray(tables[[i for i, _, _ in pieces]]),
        query_starts=np.cumsum([0, *(len(place) for place in places)]).astype(np.int32),
        context_lens=np.array([end for _, _, end in pieces], np.int32),
        logits_rows=np.arange(len(positions)),
    )


def _distance(got: torch.Tensor, expected: torch.Tensor, row: float) -> float:
    """Root mean square error over the spread expected, of one row: 0.5 the one in the middle, 1.0 the farthest off. NaN
    where there is one."""
    spread = (expected - expected.mean(1, keepdim=True)).square().mean(1).sqrt()
    error = (got - expected).square().mean(1).sqrt()
    return float((error / spread.clamp_min(1e-9)).quantile(row))
