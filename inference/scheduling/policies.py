"""Batching policies: how many may join the batch, and when. Same model, same kernels; only this differs.

Knows: how many requests run and wait, and for how long. Must not know: blocks, tokens, text, the clock.

                                 static               dynamic                 continuous
    a batch forms                when none runs       when full, or in time   in every iteration
    may others join or leave     no                   no                      yes
    do fast ones wait for slow   yes                  yes                     yes, by sharing an iteration only

Static is FasterTransformer's way, dynamic that of model servers such as Triton Inference Server, continuous Orca's
(OSDI 2022). Under the first two a batch is padded: shorter prompts count as long as the longest, and the seat of an
ended request stays in the batch, idle, until the slowest one ends. Our kernels need no padding, so it is counted, not
computed: what is measured here flatters static and dynamic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Room(NamedTuple):
    """How many requests may join in this iteration; where that is fewer than wait, why, with numbers, for people."""

    count: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Situation:
    """What a policy may look at.

    oldest_wait_ms: of the request that waits longest; ask only where some wait, since all are looked at.
    iterations_left: the most that the running requests can still take.
    """

    running: int
    waiting: int
    oldest_wait_ms: Callable[[], float]
    iterations_left: Callable[[], int]


class BatchingPolicy(Protocol):
    """Asked once an iteration, when running requests have been served and before any waiting one is looked at.

    What it lets in is still subject to seats, blocks and the token budget. Preempted requests are in the batch already
    and don't ask it. holds_seats: a request that ends leaves its seat idle until all others have ended, too.
    """

    name: str
    holds_seats: bool

    def room(self, now: Situation) -> Room: ...

    def joined(self, prompt_lengths: list[int], is_forming: bool) -> int:
        """These joined in this iteration; is_forming: only the token budget kept the next one from it.

        Positions of padding, once it is known who belongs to a batch.
        """
        ...

    def opens_in_ms(self, now: Situation) -> float:
        """With nothing running: how long until it may let someone in; 0: now."""
        ...

    def fit(self, seats: int) -> None:
        """There are so many seats from now on."""
        ...


class ContinuousPolicy:
    """The unit of scheduling is one iteration, so requests may join in every one."""

    name = "continuous"
    holds_seats = False

    def room(self, now: Situation) -> Room:
        return Room(now.waiting)

    def joined(self, prompt_lengths: list[int], is_forming: bool) -> int:
        return 0

    def opens_in_ms(self, now: Situation) -> float:
        return 0.0

    def fit(self, seats: int) -> None:
        pass


class StaticPolicy:
    """Whoever waits when the batch before has ended, up to `size`, makes the next one, and nobody joins it later.

    The token budget may spread the joining over several iterations; who belongs to the batch is settled in the first.
    """

    name = "static"
    holds_seats = True

    def __init__(self, size: int) -> None:
        self.size = self._wanted_size = size
        self._to_join = 0
        self._lengths: list[int] = []

    def room(self, now: Situation) -> Room:
        if now.running == 0:
            self._to_join, self._lengths = self._forms(now), []
        if self._to_join == 0:
            return Room(0, self._why_closed(now))
        return Room(self._to_join, f"{self.name} batch of {self.size} is full")

    def joined(self, prompt_lengths: list[int], is_forming: bool) -> int:
        self._to_join = self._to_join - len(prompt_lengths) if is_forming else 0
        self._lengths += prompt_lengths
        if self._to_join or not self._lengths:
            return 0
        padding = max(self._lengths) * len(self._lengths) - sum(self._lengths)
        self._lengths = []
        return padding

    def opens_in_ms(self, now: Situation) -> float:
        return 0.0

    def fit(self, seats: int) -> None:
        self.size = min(self._wanted_size, seats)

    def _forms(self, now: Situation) -> int:
        """Requests of the batch that begins now."""
        return min(self.size, now.waiting)

    def _why_closed(self, now: Situation) -> str:
        return f"{self.name} batch: {now.running} still run, {now.iterations_left()} iterations left at most"


class DynamicPolicy(StaticPolicy):
    """As static, but a batch may fill first: until there are `size` requests, or one has waited for `delay_ms`."""

    name = "dynamic"

    def __init__(self, size: int, delay_ms: float) -> None:
        super().__init__(size)
        self.delay_ms = delay_ms

    def opens_in_ms(self, now: Situation) -> float:
        return 0.0 if not now.waiting or now.waiting >= self.size else max(0.0, self.delay_ms - now.oldest_wait_ms())

    def _forms(self, now: Situation) -> int:
        return 0 if self.opens_in_ms(now) > 0 else super()._forms(now)

    def _why_closed(self, now: Situation) -> str:
        if now.running:
            return super()._why_closed(now)
        return f"dynamic batch fills: {now.waiting} of {self.size}, {self.opens_in_ms(now):.0f} ms left at most"


def make_policy(name: str, size: int, delay_ms: float) -> BatchingPolicy:
    """The policy of this name. `size` and `delay_ms` are for those that have batches. Raises KeyError."""
    makers: dict[str, Callable[[], BatchingPolicy]] = {
        "continuous": ContinuousPolicy,
        "dynamic": lambda: DynamicPolicy(size, delay_ms),
        "static": lambda: StaticPolicy(size),
    }
    return makers[name]()
