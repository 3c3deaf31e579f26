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
        self._made_for = (-1, "")
        self._reasons: tuple[Waiting, ...] = ()
        self._place = 0  # of the first in line among them

    def of(self, plan: Schedule) -> tuple[Waiting, ...]:
        """The first WAITING_SHOWN waiting requests after `plan` was made, in order, each with its reason."""
        head = plan.head.request_id if plan.head else ""
        if self._made_for != (self._queue.version, head):
            self._made_for = (self._queue.version, head)
            order = self._queue.first_ones()
            self._reasons = tuple(self._reason(request, place, head) for place, request in enumerate(order))
            self._place = next((place for place, r in enumerate(order) if r is plan.head), len(order))
        if plan.blocked is None or self._place == len(self._reasons):
            return self._reasons
        why, detail = plan.blocked
        return (*self._reasons[: self._place], Waiting(head, str(why), detail), *self._reasons[self._place + 1 :])

    def _reason(self, request: Request, place: int, head: str) -> Waiting:
        if self._queue.at_cap(request.user):
            running = self._queue.running_of(request.user)
            return Waiting(request.request_id, str(WaitReason.USER_CAP), f"{running} requests of this user run already")
        return Waiting(request.request_id, str(WaitReason.BEHIND), f"behind {head[:8]}, {place} ahead")
