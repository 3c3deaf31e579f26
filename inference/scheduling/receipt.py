"""The latency receipt: where the time of one request went, as it goes out.

Knows: its form, and the moments of a request's life. Must not know: the clock, how a part is measured (account.py).
Parts are ms and add up to `total`. `details` says more of some: `queue` by reason, `batchmates` by who cost most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PARTS = ("queue", "prefill", "decode", "batchmates", "preempted", "stalled", "deliver")
ACCEPT = "accept"  # of queue: from the socket to the engine's queue
EARLIER = "earlier"  # of queue: before an engine or the broker lost it
ITERATION = "iteration"  # of queue: until the iteration that was under way had ended
_LEAST = 0.0005  # ms; less is nothing, once it is rounded


@dataclass(slots=True)
class RequestTimes:
    """Unix seconds, 0 = not yet."""

    started_at: float = 0.0
    first_token_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Past:
    """What a log tells of a request that another engine had before, ms each: until it ran there, until its first token,
    until its last one, and from there until this engine has it. ttft: None where it had no token."""

    earlier: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    stalled: float = 0.0
    ttft: float | None = None

    @property
    def total(self) -> float:
        return self.earlier + self.prefill + self.decode + self.stalled


def make_receipt(parts: Mapping[str, float], queue: Mapping[str, float], **details: Any) -> dict[str, Any]:
    """The receipt of these ms. queue: by reason.  All is rounded so that what should add up does."""
    reasons = {reason: round(ms, 3) for reason, ms in queue.items() if ms >= _LEAST}
    receipt: dict[str, Any] = {part: round(parts.get(part, 0.0), 3) for part in PARTS}
    receipt["queue"] = round(sum(reasons.values()), 3)
    receipt["total"] = round(sum(receipt.values()), 3)
    receipt["details"] = {"queue": reasons, **details}
    return receipt


def unrun_receipt(waited_ms: float, past: Past | None = None, **where: Any) -> dict[str, Any]:
    """Of a request that ended before an engine took it into its queue. where: more details."""
    known = past or Past()
    parts = {"prefill": known.prefill, "decode": known.decode, "stalled": known.stalled}
    queue = {ACCEPT: max(0.0, waited_ms - known.total), EARLIER: known.earlier}
    details = {"batchmates": [], "caused": 0.0, "preemptions": 0, "ttft": known.ttft}
    return make_receipt(parts, queue, **details, **where, first_iteration=0, last_iteration=0)


def with_delivery(receipt: Mapping[str, Any], ms: float) -> dict[str, Any]:
    """The receipt, once its last frame was on its way for so long. One that says nothing goes on saying nothing."""
    if "total" not in receipt:
        return dict(receipt)
    deliver = round(max(0.0, ms), 3)
    total = round(receipt["total"] - receipt.get("deliver", 0.0) + deliver, 3)
    return {**receipt, "deliver": deliver, "total": total}
