"""What a step of the engine gathers: its plan as the ledger tells it, outputs, how long each phase took.

Knows: the engine's clock. Must not know: how a step is made.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

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
    accepted: dict[str, int] = field(default_factory=dict)  # drafts of a request that were right


@dataclass(frozen=True, slots=True)
class Planned:
    """What a record tells of the moment when the iteration was planned: what ends in it changes seats and reasons, and
    limits may be changed while it is under way."""

    policy: str
    rows: tuple[Row, ...]
    waiting: tuple[Waiting, ...]
    waiting_total: int
    idle: tuple[int, ...]
    seats: int
    budget: int

    @classmethod
    def of(cls, scheduler: Scheduler, plan: Schedule) -> Planned:
        return cls(
            scheduler.policy.name,
            plan.ledger_rows(),
            scheduler.waiting_reasons(plan),
            len(scheduler.waiting),
            tuple(scheduler.seats.idle),
            scheduler.max_num_seqs,
            scheduler.max_num_batched_tokens,
        )

    def with_accepted(self, accepted: Mapping[str, int]) -> tuple[Row, ...]:
        """The rows, once it is known how many of their drafts were right."""
        if not accepted:
            return self.rows
        return tuple(replace(row, accepted=accepted.get(row.request_id, 0)) for row in self.rows)


class Phases:
    """Durations of a step's phases, ms of the engine's one clock."""

    def __init__(self) -> None:
        self.started_at, self.t0 = time.time(), now_ms()
        self._last = self.t0
        self._away = 0.0
        self.durations = dict.fromkeys(("schedule", "forward", "sample", "commit"), 0.0)

    @property
    def total(self) -> float:
        """From the step's begin to the end of its last phase."""
        return self._last - self.t0

    @property
    def ended_ms(self) -> float:
        """The end of its last phase, by the engine's clock."""
        return self._last

    def resume(self) -> None:
        """Back at the iteration, after something else was done while a device computed its forward pass."""
        self._away = now_ms() - self._last

    def forward_took(self, ms: float | None) -> None:
        """The device needed `ms` from when the pass was launched; None: it was done when it came back. Of what was
        counted as sampling since, the first part was waiting for it, and what was spent elsewhere is no part of it."""
        if ms is None:
            return
        forward, sample = self.durations["forward"], self.durations["sample"]
        waited = min(max(0.0, ms - forward), sample)
        self.durations["forward"] = forward + waited
        self.durations["sample"] = sample - max(waited, min(self._away, sample))

    def end(self, phase: str) -> None:
        now = now_ms()
        self.durations[phase] += now - self._last  # drafts are sampled and committed in turn
        self._last = now


def now_ms() -> float:
    """Milliseconds of the one clock by which everything is timed."""
    return time.perf_counter() * 1000
