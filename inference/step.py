"""What a step of the engine gathers: its plan as the ledger tells it, outputs, how long each phase took.

Knows: the engine's clock. Must not know: how a step is made.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from inference.scheduling.ledger import Finished, Row, Waiting
from inference.scheduling.outputs import RequestFinish, TokenDelta
from inference.scheduling.plan import Schedule
from inference.scheduling.scheduler import Scheduler


@dataclass(slots=True)
class Outcome:
    """Filled while a step goes on, and between steps by what ends there."""

    deltas: list[TokenDelta] = field(default_factory=list)
    finishes: list[RequestFinish] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Planned:
    """What a record tells of the moment when the iteration was planned: what ends in it changes seats and reasons."""

    policy: str
    rows: tuple[Row, ...]
    waiting: tuple[Waiting, ...]
    waiting_total: int
    idle: tuple[int, ...]

    @classmethod
    def of(cls, scheduler: Scheduler, plan: Schedule) -> Planned:
        return cls(
            scheduler.policy.name,
            plan.ledger_rows(),
            scheduler.waiting_reasons(plan),
            len(scheduler.waiting),
            tuple(scheduler.seats.idle),
        )


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
