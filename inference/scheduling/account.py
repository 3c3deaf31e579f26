"""The account of one request: every moment of its life belongs to exactly one part of its receipt.

Knows: the parts, and what the engine's meters showed when the part that goes on now began. Must not know: the clock,
the scheduler. Parts are differences of meters between moments that follow one another, so they add up by construction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from heapq import nlargest
from typing import Any, NamedTuple

from inference.scheduling.account_prefills import Span
from inference.scheduling.receipt import make_receipt
from inference.scheduling.request import Request, WaitReason

DEAREST = 5  # batch-mates that a receipt names


class Stage(Enum):
    """Where a request is. PREEMPTED: until all is computed again that was."""

    WAITING = "queue"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"
    OVER = "over"


class Meters(NamedTuple):
    """at: ms of the engine's clock.  active: those in which iterations could begin.  prefills: those that prefill has
    cost in shared iterations."""

    at: float = 0.0
    active: float = 0.0
    prefills: float = 0.0


@dataclass(slots=True, eq=False)
class Account:
    """parts, reasons: ms so far; reasons are those of waiting.  stage, since: what goes on, and its meters at first.

    capped: its user's time at the cap when a plan saw it first.  explained: ms of waiting whose reason is known.
    span, span_ms: its own prefill, and where that meter stood when the stage began.
    in_batch, before: when it began to share iterations, and others' meters then.  bill: what others' prefill cost it.
    """

    request: Request
    since: Meters
    born: float
    parts: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, float] = field(default_factory=dict)
    stage: Stage = Stage.WAITING
    capped: float = 0.0
    explained: float = 0.0
    span: Span | None = None
    span_ms: float = 0.0
    in_batch: float | None = None
    before: dict[Span, float] = field(default_factory=dict)
    bill: dict[str, float] = field(default_factory=dict)
    caused: float = 0.0
    ttft: float | None = None
    first: int = 0
    last: int = 0

    def explain(self, reason: str, ms: float) -> None:
        """So much of its waiting had this reason."""
        if ms > 0.0:
            self.reasons[reason] = self.reasons.get(reason, 0.0) + ms
            self.explained += ms

    def settle(self, now: Meters) -> None:
        """The stage ends, or goes on from here: its time goes to its part."""
        begun, self.since = self.since, now
        active = now.active - begun.active
        halted = now.at - begun.at - active
        match self.stage:
            case Stage.WAITING:
                self._add_waiting(active, halted)
                return
            case Stage.PREFILL | Stage.DECODE:
                others = self._others(now.prefills - begun.prefills, active)
                self._add("batchmates", others)
                self._add(self.stage.value, active - others)
            case Stage.PREEMPTED:
                self._add("preempted", active)
        self._add("stalled", halted)

    def _add_waiting(self, active: float, halted: float) -> None:
        """Whatever has no other reason was behind somebody: only who is first, or at a cap, has one of its own."""
        for reason, ms in ((WaitReason.BEHIND, active - self.explained), (WaitReason.PAUSED, halted)):
            if ms > 0.0:
                self.reasons[reason] = self.reasons.get(reason, 0.0) + ms
        self.explained = 0.0

    def _others(self, prefills: float, active: float) -> float:
        """Of the stage's time, what others' prefill took."""
        own = 0.0 if self.span is None else self.span.ms - self.span_ms
        if self.span is not None:
            self.span_ms = self.span.ms
        return min(active, max(0.0, prefills - own))

    def _add(self, part: str, ms: float) -> None:
        if ms > 0.0:
            self.parts[part] = self.parts.get(part, 0.0) + ms

    def receipt(self) -> dict[str, Any]:
        """Once it is over."""
        dearest = nlargest(DEAREST, self.bill.items(), key=lambda item: item[1])
        return make_receipt(
            self.parts,
            {str(reason): ms for reason, ms in self.reasons.items()},
            batchmates=[{"request_id": name, "ms": round(ms, 3)} for name, ms in dearest if ms >= 0.0005],
            caused=round(self.caused, 3),
            preemptions=self.request.num_preemptions,
            ttft=None if self.ttft is None else round(self.ttft, 3),
            first_iteration=self.first,
            last_iteration=self.last,
        )
