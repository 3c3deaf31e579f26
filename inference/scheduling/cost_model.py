"""What an iteration costs, learnt from this engine's own iterations.

Knows: loads and milliseconds. Must not know: requests, torch, which model runs on what.

The time of an iteration is close to linear in three counts: tokens that go through the linear layers, positions that
attention reads, tokens that are sampled; and there is a part that it costs anyhow (the weights are read once). Their
prices are a least-squares fit with no price below zero, of relative errors, so that a rare long prefill does not
outweigh a thousand decodes; older iterations fade, so that the fit follows the machine.
"""

from __future__ import annotations

from typing import NamedTuple


class Load(NamedTuple):
    """What is computed: tokens; reads: positions read by attention, summed over the tokens; samples."""

    tokens: int = 0
    reads: int = 0
    samples: int = 0

    def with_span(self, start: int, count: int, samples: int) -> Load:
        """And positions start..start + count - 1 of one more request, and what of it is sampled."""
        reads = count * start + count * (count + 1) // 2
        return Load(self.tokens + count, self.reads + reads, self.samples + samples)


# Counts are fitted in these units, so that all prices are of one size and one regulariser fits them all.
_UNITS = (1.0, 64.0, 16384.0, 64.0)
_FADE = 0.995  # an iteration weighs half as much after 140 others
_HOLD = 1e-3  # how strongly a price stays what it was where the iterations tell nothing about it
_SWEEPS = 3


class CostModel:
    """Prices of a Load. `error`: how far predictions were off lately, as a share of what was measured."""

    def __init__(self) -> None:
        self.prices = [0.0] * len(_UNITS)  # ms a unit: fixed, tokens, reads, samples
        self.observed = 0
        self.error = 1.0
        size = range(len(_UNITS))
        self._gram = [[0.0 for _ in size] for _ in size]
        self._moment = [0.0 for _ in size]

    def predict(self, load: Load) -> float:
        """Milliseconds that an iteration of this load takes; 0 before anything was observed."""
        return sum(price * count for price, count in zip(self.prices, _counts(load), strict=True))

    def per_token(self, start: int) -> float:
        """Milliseconds that one more token costs at position `start` of its request."""
        return self.prices[1] / _UNITS[1] + self.prices[2] * (start + 1) / _UNITS[2]

    def span(self, start: int, count: int) -> float:
        """Milliseconds that `count` tokens cost from position `start` on: the mean of the first and last one's price,
        since it rises linearly."""
        return count * (self.per_token(start) + self.per_token(start + count - 1)) / 2

    def summary(self) -> dict[str, float]:
        """The prices, ms each, and how well they fit, for people."""
        names = ("fixed", "token", "read", "sample")
        prices = {name: price / unit for name, price, unit in zip(names, self.prices, _UNITS, strict=True)}
        return {**prices, "error": self.error, "observed": self.observed}

    def observe(self, load: Load, ms: float) -> None:
        """An iteration of this load took `ms`."""
        if ms <= 0.0 or not load.tokens:
            return
        if self.observed:
            self.error += 0.05 * (abs(self.predict(load) - ms) / ms - self.error)
        self.observed += 1
        shares = [count / ms for count in _counts(load)]
        for row, share in zip(self._gram, shares, strict=True):
            for j, other in enumerate(shares):
                row[j] = _FADE * row[j] + share * other
        self._moment = [_FADE * moment + share for moment, share in zip(self._moment, shares, strict=True)]
        self._fit()

    def _fit(self) -> None:
        """Coordinate descent from the last prices: a few sweeps an iteration are enough to follow them."""
        before = list(self.prices)
        for _ in range(_SWEEPS):
            for i, row in enumerate(self._gram):
                hold = _HOLD * row[i]
                others = sum(a * p for a, p in zip(row, self.prices, strict=True)) - row[i] * self.prices[i]
                if row[i] > 0.0:
                    self.prices[i] = max(0.0, (self._moment[i] - others + hold * before[i]) / (row[i] + hold))


def _counts(load: Load) -> tuple[float, float, float, float]:
    return 1.0, load.tokens / _UNITS[1], load.reads / _UNITS[2], load.samples / _UNITS[3]
