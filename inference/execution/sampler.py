"""From logits to token ids: greedy, temperature, top-k, top-p, min-p.

Knows: logits, sampling parameters, a seed and a token's index. Must not know: requests, text, other rows' reasons.
A token is a function of (logits row, parameters, seed, index) alone: each row is worked on by itself, and its one
random number comes from a counter-based generator (Philox; Salmon et al., "Parallel random numbers: as easy as 1, 2,
3", 2011). So batch-mates don't matter, and a request that is dropped and computed again goes on with the same tokens.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from inference.config import SamplingParams

NUMERICAL_ERROR = -1  # in place of a token id: the row holds NaN or +inf, or allows no token
GREEDY_BELOW = 1e-5  # a lower temperature differs from greedy only between logits closer than float32 can tell
WORTH_SORTING = (1e-2, 1e-4, 1e-6)  # relative to the most likely token: top-p seldom reaches less likely ones
SPAN = 256


@dataclass(frozen=True, slots=True)
class SampleRow:
    """What is asked of one row of logits.

    seed: the request's, 0 or more.  token_index: tokens of the answer before this one.
    end_ids: ids that would end the answer (EOS and stop ids); barred while token_index < params.min_tokens.
    """

    params: SamplingParams
    seed: int
    token_index: int
    end_ids: Collection[int] = ()

    @property
    def is_greedy(self) -> bool:
        return self.params.temperature < GREEDY_BELOW

    @property
    def bars_end(self) -> bool:
        return self.token_index < self.params.min_tokens


class Sampler:
    """Holds nothing between calls."""

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[int]:
        """Token ids, one for each row of `logits`, float32 [S, vocab], on any device.

        A row that can't be sampled gets NUMERICAL_ERROR and does no harm to the others. `logits` stays as it is.
        """
        if len(rows) != logits.shape[0]:
            raise ValueError(f"{len(rows)} rows are asked for, and there are {logits.shape[0]} rows of logits")
        special = [place for place, row in enumerate(rows) if row.bars_end or not row.is_greedy]
        if logits.device.type == "cpu":
            on_cpu = logits.numpy()
            ids, largest = _argmax(on_cpu)
            chosen = ((place, on_cpu[place]) for place in special)
        else:
            best = logits.max(dim=1)
            ids, largest = best.indices.tolist(), best.values.tolist()
            chosen = zip(special, logits[special].cpu().numpy(), strict=True)
        ids = [i if math.isfinite(value) else NUMERICAL_ERROR for i, value in zip(ids, largest, strict=True)]
        for place, row_logits in chosen:
            if ids[place] != NUMERICAL_ERROR:
                ids[place] = _sample_row(row_logits, rows[place], largest[place])
        return ids


def _argmax(logits: np.ndarray) -> tuple[list[int], list[float]]:
    """Index and value of each row's maximum; NaN counts as larger than all numbers."""
    ids = logits.argmax(axis=1)
    return ids.tolist(), logits[np.arange(len(ids)), ids].tolist()


def _sample_row(logits: np.ndarray, row: SampleRow, largest: float) -> int:
    if row.bars_end:
        logits = logits.copy()
        logits[[i for i in row.end_ids if 0 <= i < len(logits)]] = -np.inf
        best = int(logits.argmax())
        largest = float(logits[best])
        if not math.isfinite(largest):
            return NUMERICAL_ERROR
        if row.is_greedy:
            return best
    weights = _weights(logits, largest, row.params.temperature)
    ids, weights = _likely(weights, row.params)
    place = _pick(weights, uniform(row.seed, row.token_index))
    return place if ids is None else int(ids[place])


def _weights(logits: np.ndarray, largest: float, temperature: float) -> np.ndarray:
    """Probabilities up to a factor: the most likely token has 1, so nothing overflows. Float32 [vocab]."""
    with np.errstate(over="ignore", under="ignore"):  # too small to tell from nothing: exp(-inf) is 0
        weights = logits - np.float32(largest)
        weights /= np.float32(temperature)
        return np.exp(weights, out=weights)


def _likely(weights: np.ndarray, params: SamplingParams) -> tuple[np.ndarray | None, np.ndarray]:
    """Ids, ascending, that top-k, then top-p of what is left, then min-p allow, and their weights; None for all ids.

    Among equals the lower id stays.
    """
    ids = None
    if 0 < params.top_k < len(weights):
        ids = _largest(weights, params.top_k, np.partition(weights, -params.top_k)[-params.top_k])
        weights = weights[ids]
    if params.top_p < 1.0:
        kept = _largest(weights, *_nucleus(weights, params.top_p))
        ids, weights = kept if ids is None else ids[kept], weights[kept]
    if params.min_p > 0.0:
        kept = np.flatnonzero(weights >= np.float32(params.min_p))
        ids, weights = kept if ids is None else ids[kept], weights[kept]
    return ids, weights


def _nucleus(weights: np.ndarray, top_p: float) -> tuple[int, np.float32]:
    """How many of the largest weights it takes to have `top_p` of their sum, and the smallest of these."""
    wanted = top_p * weights.sum()
    for floor in WORTH_SORTING:
        candidates = weights[np.flatnonzero(weights >= floor)]  # several times as fast as a mask
        if candidates.sum() > wanted:
            break
    else:
        candidates = weights
    candidates = np.sort(candidates)[::-1]
    count = int(np.searchsorted(np.cumsum(candidates, dtype=np.float64), wanted)) + 1
    count = min(count, len(candidates))
    return count, candidates[count - 1]


def _largest(weights: np.ndarray, count: int, smallest: np.float32) -> np.ndarray:
    """Places of the `count` largest weights, of which `smallest` is the least."""
    kept = np.flatnonzero(weights >= smallest)
    surplus = len(kept) - count
    return kept if surplus <= 0 else np.delete(kept, np.flatnonzero(weights[kept] == smallest)[-surplus:])


def _pick(weights: np.ndarray, u: float) -> int:
    """The id at which the cumulated weights pass the fraction `u` of their sum, found span by span."""
    spans = np.add.reduceat(weights, np.arange(0, len(weights), SPAN))
    sums = np.cumsum(spans, dtype=np.float64)
    target = u * sums[-1]
    span = min(int(np.searchsorted(sums, target, side="right")), len(spans) - 1)
    start = span * SPAN
    inside = np.cumsum(weights[start : start + SPAN], dtype=np.float64)
    # As a share of the span, since its two sums are rounded differently and the last id must not get the difference.
    share = (target - (sums[span - 1] if span else 0.0)) / float(spans[span])
    place = start + min(int(np.searchsorted(inside, share * inside[-1], side="right")), len(inside) - 1)
    if weights[place] > 0.0:
        return place
    allowed = np.flatnonzero(weights)  # rounding led past the last weight: take the nearest before it, or else after it
    return int(allowed[max(0, np.searchsorted(allowed, place) - 1)])


def uniform(seed: int, index: int) -> float:
    """The number in [0, 1) that belongs to token `index` of a request with this seed."""
    return (np.random.Philox(key=seed, counter=index).random_raw() >> 11) * 2.0**-53
