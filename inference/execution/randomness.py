"""Draws that belong to a token of a request: a pure function of weights, seed and token index.

Knows: weights, seeds. Must not know: requests, parameters, where weights come from.

Each id has a random waiting time of its own, keyed by (seed, token index, id), and the one with the largest weight by
time wins. That is the Gumbel-max trick without its logarithms (an exponential race; Maddison et al., "A* Sampling",
2014). It changes its mind only where two ids are as close as rounding, whatever happens to all the others, while one
number against a cumulated sum feels the rounding of every id before it. Noise for a whole vocabulary would cost more
than all the rest, so ids run in spans: first the spans race with their sums, then the ids of the one that won, which
draws from the same distribution exactly.

The generator is counter-based (Philox; Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
"""

from __future__ import annotations

from typing import Any

import numpy as np

SPAN = 256  # ids: a multiple of what Philox makes at once
_SPANS, _IDS = 0, 1  # what noise is for: a word of the counter, so that the two never share a number
_PER_BLOCK = 4  # numbers that one count of Philox gives


class Noise:
    """A generator whose state is set anew for each draw, so that it keeps nothing between two. For one thread."""

    def __init__(self) -> None:
        self._generator = np.random.Philox(key=0)
        self._state: Any = self._generator.state  # arrays of its own

    def waits(self, seed: int, index: int, kind: int, first: int, count: int) -> np.ndarray:
        """Exponentially distributed float64 [count], for numbers first .. first + count - 1; `first` % 4 is 0."""
        self._state["state"]["key"][:] = seed, 0
        self._state["state"]["counter"][:] = first // _PER_BLOCK, kind, index, 0
        self._generator.state = self._state
        bits = self._generator.random_raw(count) >> np.uint64(12)
        return -np.log((bits + 0.5) * 2.0**-52)  # the half keeps both ends, 0 and 1, out

    def pick(self, weights: np.ndarray, ids: np.ndarray | None, seed: int, index: int) -> int:
        """Place of the winner in `weights`, float32, not all 0; one of weight 0 never wins.

        ids: to which tokens the weights belong, ascending; None where place is id.
        """
        if ids is None:
            starts = np.arange(0, len(weights), SPAN)
            spans = np.arange(len(starts))
        else:
            starts, spans = _spans(ids)
        sums = np.add.reduceat(weights, starts)
        won = int((sums / self.waits(seed, index, _SPANS, 0, int(spans[-1]) + 1)[spans]).argmax())
        begin, first = int(starts[won]), int(spans[won]) * SPAN
        inside = weights[begin : starts[won + 1]] if won + 1 < len(starts) else weights[begin:]
        waits = self.waits(seed, index, _IDS, first, SPAN)
        waits = waits[: len(inside)] if ids is None else waits[ids[begin : begin + len(inside)] - first]
        return begin + int((inside / waits).argmax())


def _spans(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the spans that are not empty begin among ascending ids, and their numbers."""
    bounds = ids.searchsorted(np.arange(0, int(ids[-1]) + SPAN + 1, SPAN))
    spans = (bounds[1:] > bounds[:-1]).nonzero()[0]
    return bounds[spans], spans
