"""The few figures of a receipt that requests are sorted and filtered by, as columns of their row.

Knows: the form of a receipt. Must not know: the database, who shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

AS_A_RULE = {"accept": 50.0, "iteration": 50.0}  # ms of what everybody waits for: that is no reason yet
LONGEST_REASON = 16  # characters of a reason that the column holds


def figures_of(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """Values of wait_reason, queue_ms, total_ms, caused_ms and preemptions; what a receipt does not say is 0 or ""."""
    details = _details(receipt)
    return {
        "wait_reason": wait_reason(details.get("queue")),
        "queue_ms": milliseconds(receipt.get("queue")),
        "total_ms": milliseconds(receipt.get("total")),
        "caused_ms": milliseconds(details.get("caused")),
        "preemptions": min(int(milliseconds(details.get("preemptions"))), 32767),
    }


def first_token_ms(receipt: Mapping[str, Any]) -> float:
    """From the request's arrival to its first token, as the receipt counts it; 0 where it does not say."""
    return milliseconds(_details(receipt).get("ttft"))


def wait_reason(reasons: Any) -> str:
    """The dearest reason of the queue part. The way to the queue ("accept") and the iteration that is under way are
    ones only where they took long."""
    if not isinstance(reasons, Mapping):
        return ""
    waits = {name: milliseconds(ms) for name, ms in reasons.items()}
    dearest = max(
        (name for name, ms in waits.items() if ms > AS_A_RULE.get(name, 0.0)), key=waits.__getitem__, default=""
    )
    return dearest[:LONGEST_REASON]


def milliseconds(value: Any) -> float:
    """A number of a receipt: never negative, and 0 where there is none."""
    return max(0.0, float(value)) if isinstance(value, int | float) else 0.0


def _details(receipt: Mapping[str, Any]) -> Mapping[str, Any]:
    """Empty where it is of a form that has none."""
    details = receipt.get("details")
    return details if isinstance(details, Mapping) else {}
