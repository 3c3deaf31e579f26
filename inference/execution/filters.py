"""From logits to the weights that may be drawn: temperature, then top-k, top-p of what is left, min-p.

Knows: one row of logits, parameters. Must not know: randomness, other rows, why a logit is what it is.
"""

from __future__ import annotations

import numpy as np

from inference.config import SamplingParams

WORTH_SORTING = (
    1e-2,
    1e-3,
    1e-4,
    1e-5,
    1e-6,
)  # to the most likely token: top-p seldom reaches less likely ones


def weights_of(logits: np.ndarray, peak: float, temperature: float) -> np.ndarray:
    """Probabilities up to a factor: the most likely token, with logit `peak`, has 1, so nothing overflows. Float32."""
    with np.errstate(over="ignore", under="ignore"):  # too small to tell from nothing: exp(-inf) is 0
        weights = logits - np.float32(peak)
        weights /= np.float32(temperature)
        return np.exp(weights, out=weights)


def likely(weights: np.ndarray, params: SamplingParams) -> tuple[np.ndarray | None, np.ndarray]:
    """Ids, ascending, that top-k, then top-p of what is left, then min-p allow, and their weights; None for all ids.

    Among equals the lower id stays.
    """
    ids = None
    if 0 < params.top_k < len(weights):
        ids = largest(weights, params.top_k)
        weights = weights[ids]
    if params.top_p < 1.0:
        kept = _at_least(weights, *_nucleus(weights, params.top_p))
        ids, weights = kept if ids is None else ids[kept], weights[kept]
    if params.min_p > 0.0:
        kept = np.flatnonzero(weights >= np.float32(params.min_p))
        ids, weights = kept if ids is None else ids[kept], weights[kept]
    return ids, weights


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """Places, ascending, of the `count` largest values; among equals the lower place stays."""
    if count >= len(values):
        return np.arange(len(values))
    return _at_least(values, count, np.partition(values, -count)[-count])


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


def _at_least(values: np.ndarray, count: int, smallest: np.float32) -> np.ndarray:
    """Places of the `count` largest values, of which `smallest` is the least."""
    kept = np.flatnonzero(values >= smallest)
    surplus = len(kept) - count
    return kept if surplus <= 0 else np.delete(kept, np.flatnonzero(values[kept] == smallest)[-surplus:])
