"""Where each waiting request stands, and when it may begin: what is told to those who wait.

Knows: the scheduler's queue and running requests, prices. Must not know: the clock, how it is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import repeat
from typing import NamedTuple

from inference.scheduling.cost_model import Load
from inference.scheduling.ledger import WAITING_SHOWN, Waiting
from inference.scheduling.policies import StaticPolicy
from inference.scheduling.request import Request, WaitReason
from inference.scheduling.scheduler import Scheduler

LEAST_OBSERVED = 20  # iterations, before prices say anything


class Place(NamedTuple):
    """position: how many are before it, exact for the first hundred, else of the last hundred.  eta_ms: until it runs;
    None where nothing can be said."""

    request_id: str
    position: int
    reason: str
    eta_ms: float | None


class Line:
    """Of one scheduler. share_used: of `max_tokens`, what answers have used lately."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.share_used = 1.0

    def ended(self, request: Request) -> None:
        """An answer came to its own end."""
        self.share_used += 0.05 * (len(request.output_ids) / request.params.max_tokens - self.share_used)

    def places(self, waiting: Sequence[Waiting]) -> list[Place]:
        """Of all that have not begun to answer. waiting: the first ones in order, as the newest iteration has them."""
        return [*self._first(waiting), *self._others(waiting)]

    def _first(self, waiting: Sequence[Waiting]) -> Iterator[Place]:
        requests = self._scheduler.waiting
        here = [one for one in waiting if one.request_id in requests]
        for position, (one, eta) in enumerate(zip(here, self._starts(here), strict=False)):
            if not requests[one.request_id].output_ids:
                yield Place(one.request_id, position, one.reason, None if eta is None else round(eta, 1))

    def _others(self, waiting: Sequence[Waiting]) -> Iterator[Place]:
        """Those further back, in the order in which they came; whose turn it will be is not known so far ahead."""
        if len(self._scheduler.waiting) <= WAITING_SHOWN:
            return
        first = {one.request_id for one in waiting}
        is_paused, at_cap = self._scheduler.gate.paused, self._scheduler.queue.shares.at_cap
        place = len(first)
        for request in self._scheduler.waiting.values():
            if request.request_id not in first:
                reason = WaitReason.USER_CAP if at_cap(request.user) else WaitReason.BEHIND
                reason = WaitReason.PAUSED if is_paused else reason  # as for the first ones
                yield Place(request.request_id, place // WAITING_SHOWN * WAITING_SHOWN, str(reason), None)
                place += 1

    def _starts(self, waiting: Sequence[Waiting]) -> Iterable[float | None]:
        """Milliseconds until each of them runs, by the prices of this engine's own iterations.

        It is assumed that answers use the share of their `max_tokens` that answers have used lately, that iterations
        cost what one of those who run now costs and follow one another at once, that whoever waits takes the place of
        the next who ends, in this order, that all prompts before it are computed first, and that nobody comes who goes
        before. Where blocks are short, one place is assumed to be enough for one request. Nothing is said while the
        engine is paused, while a policy is changed, before the prices are known, and of users at their cap.
        """
        scheduler = self._scheduler
        costs, running = scheduler.pace.costs, scheduler.running.values()
        unknown = scheduler.gate.paused or scheduler.next_policy is not None or costs.observed < LEAST_OBSERVED
        if unknown or not running:
            return repeat(None, len(waiting))
        rows = len(running)
        ms = max(costs.predict(Load(rows, sum(r.num_tokens for r in running), rows)), scheduler.gate.slow_ms)
        left = [self._iterations(request) for request in running]
        if isinstance(scheduler.policy, StaticPolicy):
            size = scheduler.policy.size
            return (max(left) * ms if i < size else None for i in range(len(waiting)))
        if waiting and waiting[0].reason == WaitReason.NO_BUDGET:
            left += [1] * scheduler.seats.free_count
        return self._in_turn(waiting, left, ms)

    def _in_turn(self, waiting: Sequence[Waiting], left: list[int], ms: float) -> Iterator[float | None]:
        """left: iterations until each place is free."""
        heapify(left)
        prompts = 0.0
        for one in waiting:
            if one.reason == WaitReason.USER_CAP:
                yield None
                continue
            request = self._scheduler.waiting[one.request_id]
            begins = heappop(left)
            yield begins * ms + prompts
            prompts += self._scheduler.pace.costs.span(0, len(request.prompt_ids))
            heappush(left, begins + self._iterations(request))

    def _iterations(self, request: Request) -> int:
        """That it still takes."""
        answer = round(self.share_used * request.params.max_tokens) - len(request.output_ids)
        chunks = -(-max(0, len(request.prompt_ids) - request.num_computed_tokens) // self._scheduler.chunk)
        return chunks + max(1, answer)
