"""What a step of the engine gathers: outputs, and how long each phase took.

Knows: the engine's clock. Must not know: how a step is made.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from inference.scheduling.ledger import Finished
from inference.scheduling.outputs import RequestFinish, TokenDelta


@dataclass(slots=True)
class Outcome:
    """Filled while a step goes on, and between steps by what ends there."""

    deltas: list[TokenDelta] = field(default_factory=list)
    finishes: list[RequestFinish] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)


class Phases:
    """Durations of a step's phases, ms of the engine's one clock."""

    def __init__(self) -> None:
        self.started_at, self.t0 = time.time(), now_ms()
        self._last = self.t0
        self.durations = dict.fromkeys(("schedule", "forward", "sample", "commit"), 0.0)

    def end(self, phase: str) -> None:
        now = now_ms()
        self.durations[phase], self._last = now - self._last, now


def now_ms() -> float:
    """Milliseconds of the one clock by which everything is timed."""
    return time.perf_counter() * 1000
