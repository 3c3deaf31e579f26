"""How much of a prompt may be computed beside decodes, so that those who read along notice no gap.

Knows: the gap that was promised, what tokens cost. Must not know: requests, seats, blocks.
Sarathi (Agrawal et al., OSDI 2024) cuts prompts into chunks of a fixed size. What people feel is time, and a chunk's
time depends on the machine, on how many decode beside it and on how long the contexts are; so here the gap is stated,
in ms, and the chunk is what fits it, by prices learnt on this engine (cost_model.py).
"""

from __future__ import annotations

import math

from inference.scheduling.cost_model import CostModel, Load

# However little time is left, prompts go on: each iteration computes this many of their tokens at least.
LEAST_TOKENS = 16


class PrefillRoom:
    """What one iteration may spend on prompts: `ms` in all."""

    def __init__(self, costs: CostModel, ms: float, shared: bool, why: str) -> None:
        self.why = why  # the limit in words, for those who wait for it
        self._costs = costs
        self._left = ms
        self._share = ms / 2 if shared else ms  # of one prompt, so that a short one can pass a long one
        self._tokens = 0

    @property
    def is_spent(self) -> bool:
        """Whether nobody else should join: too little time is left for a chunk that is worth it."""
        return self._tokens >= LEAST_TOKENS and self._fit(0, min(self._left, self._share)) < LEAST_TOKENS

    def take(self, start: int, count: int) -> int:
        """Of `count` tokens of a prompt from position `start` on, how many are computed now: one at least."""
        least = max(1, LEAST_TOKENS - self._tokens)
        count = min(count, max(least, self._fit(start, min(self._left, self._share))))
        self._left -= self._costs.span(start, count)
        self._tokens += count
        return count

    def _fit(self, start: int, ms: float) -> int:
        """The most tokens that take no longer than `ms`: the root of rise / 2 * n**2 + first * n = ms."""
        first = self._costs.per_token(start)
        rise = self._costs.per_token(start + 1) - first
        if ms <= 0.0:
            return 0
        if first <= 0.0:
            return 1 << 30
        return int(2 * ms / (first + math.sqrt(first * first + 2 * rise * ms)))


class Pace:
    """Keeps the promise. gap_ms: between two tokens of a decoding request; None: prompts are limited by the budget."""

    def __init__(self, gap_ms: float | None = None, costs: CostModel | None = None) -> None:
        self.gap_ms = gap_ms
        self.costs = costs or CostModel()

    def room(self, decoding: Load, prompts: int) -> PrefillRoom | None:
        """For prompts beside these decodes; None: no limit. prompts: requests that have some of theirs to compute."""
        if self.gap_ms is None or not decoding.samples:
            return None
        left = self.gap_ms - self.costs.predict(decoding)
        gap = f"{self.gap_ms:g} ms between the tokens of {decoding.samples} decoding"
        return PrefillRoom(self.costs, left, prompts > 1, gap)
