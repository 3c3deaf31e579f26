"""Why each waiting request waits, in words with numbers.

Knows: the queue, and what stopped the first in line. Must not know: blocks, seats, how a plan is made.
An iteration costs the same however many wait: sentences are made anew only when the first places have changed.
"""

from __future__ import annotations

from inference.scheduling.ledger import Waiting
from inference.scheduling.plan import Schedule
from inference.scheduling.request import Request, WaitReason
from inference.scheduling.waiting_queue import WaitingQueue


class WaitingReasons:
    """The reasons of one queue's requests."""

    def __init__(self, queue: WaitingQueue) -> None:
        self._queue = queue
        self._made_for = -1
        self._order: list[Request] = []
        self._reasons: tuple[Waiting, ...] = ()

    def of(self, plan: Schedule) -> tuple[Waiting, ...]:
        """The first WAITING_SHOWN waiting requests, in order, each with its reason. To be asked when `plan` has just
        been made: later on other users are at their caps."""
        if self._made_for != self._queue.version:
            self._made_for, self._order = self._queue.version, self._queue.first_ones()
            self._reasons = tuple(self._reason(request, place) for place, request in enumerate(self._order))
        if plan.blocked is None:
            return self._reasons
        why, detail = plan.blocked
        if why is WaitReason.PAUSED:
            return tuple(
                _waiting(request, why, f"{detail}; {place} ahead") for place, request in enumerate(self._order)
            )
        if plan.head is None:
            return self._reasons
        head = _waiting(plan.head, why, detail)
        return tuple(head if waiting.request_id == head.request_id else waiting for waiting in self._reasons)

    def _reason(self, request: Request, place: int) -> Waiting:
        shares = self._queue.shares
        if shares.at_cap(request.user):
            detail = f"its user has {shares.running(request.user)} running"
            return _waiting(request, WaitReason.USER_CAP, detail)
        return _waiting(request, WaitReason.BEHIND, f"{place} ahead")


def _waiting(request: Request, why: WaitReason, detail: str) -> Waiting:
    since = round(request.arrived_ms, 1) if request.started_ms is None else None
    return Waiting(request.request_id, str(why), detail, len(request.prompt_ids), since)
