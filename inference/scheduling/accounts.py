"""Whose time went where: the accounts of all requests that an engine has.

Knows: what each iteration planned, and what its parts cost by the engine's own prices. Must not know: the clock
(moments are handed in, ms of the engine's one clock), text, who reads a receipt.

An iteration costs the same however many wait: nobody's account is touched but where something changes for it. Time in
the batch is read off meters that go on for all; why the others wait is account_waits.py's. A pause stops the meter of
active time, and with it all the others.
Who is in an iteration pays for others' prefill by the iteration's time, split as the cost model splits it; what is left
is its own, host gaps included.
"""

from __future__ import annotations

from collections.abc import Iterator

from inference.scheduling.account import Account, Meters, Stage
from inference.scheduling.account_prefills import Prefills, Span
from inference.scheduling.account_waits import Waits
from inference.scheduling.cost_model import CostModel, Load
from inference.scheduling.plan import Schedule
from inference.scheduling.receipt import ACCEPT, EARLIER, Past
from inference.scheduling.request import Request, WaitReason
from inference.scheduling.shares import Shares


class Accounts:
    """n: number of the newest planned iteration."""

    def __init__(self, costs: CostModel, shares: Shares) -> None:
        self.n = 0
        self._costs = costs
        self._of: dict[str, Account] = {}
        self._now = Meters()
        self._is_halted = False
        self._prefills = Prefills()
        self._in_batch: dict[str, Account] = {}  # in the order in which they came in
        self._again: dict[str, Account] = {}  # in the batch, computing what they had lost
        self._waits = Waits(shares)

    def open(self, request: Request, now: float, age_ms: float = 0.0, past: Past | None = None) -> Account:
        """An account of one that waits from now on. age_ms: it is so old already; past: what of that is known from
        another engine. Nothing is kept of it yet."""
        self._go_on(now)
        known = past or Past()
        account = Account(request, self._now, self._now.at - max(age_ms, known.total))
        account.parts = {"prefill": known.prefill, "decode": known.decode, "stalled": known.stalled}
        account.reasons = {ACCEPT: max(0.0, age_ms - known.total), EARLIER: known.earlier}
        account.ttft = known.ttft
        return account

    def arrive(self, account: Account) -> Account:
        """It is in the queue."""
        self._of[account.request.request_id] = account
        self._waits.arrive(account)
        return account

    def planned(self, plan: Schedule, load: Load, n: int, now: float) -> None:
        """An iteration was planned at `now`, and begins. load: all of it."""
        self._go_on(now)
        self._is_halted = plan.blocked is not None and plan.blocked[0] is WaitReason.PAUSED
        self._waits.count(self._now.active)
        for request in plan.preempted:
            self.lost(self._of.get(request.request_id), now)
        self.n = n
        for request in plan.joined:
            self._join(self._of[request.request_id])
        first = None if plan.head is None or self._is_halted else self._of.get(plan.head.request_id)
        self._waits.note(plan, first, self._now.active)
        self._prefills.price(self._rates(plan, load) if self._prefills.active else ())

    def landed(self, now: float, rests: bool = False) -> None:
        """The iteration has ended; who has all again that was lost goes on from where it was. rests: the next one is
        not to begin at once, since the engine is paused or slowed down."""
        self._go_on(now)
        self._is_halted = rests
        self._prefills.price(())
        for account in [a for a in self._again.values() if a.request.num_computed_tokens >= a.request.lost_at]:
            del self._again[account.request.request_id]
            self._enter(account, Stage.PREFILL if account.ttft is None else Stage.DECODE)

    def token(self, account: Account, now: float) -> None:
        """A token came. Only to be told of one that is not in decode."""
        self._go_on(now)
        if account.ttft is None:
            account.ttft = self._now.at - account.born
        self._again.pop(account.request.request_id, None)
        self._enter(account, Stage.DECODE)

    def lost(self, account: Account | None, now: float) -> None:
        """It was preempted, and waits to be computed again."""
        if account is None or account.stage in (Stage.WAITING, Stage.OVER):
            return
        self._go_on(now)
        self._leave(account)
        account.stage = Stage.PREEMPTED

    def end(self, account: Account, now: float) -> None:
        """It has come to its end. What is told later changes nothing."""
        if account.stage is Stage.OVER:
            return
        self._go_on(now)
        if account.stage is Stage.WAITING:
            self._waits.close(account, self._now.active)
        self._leave(account)
        account.stage = Stage.OVER
        del self._of[account.request.request_id]

    def clear(self) -> None:
        """All are gone."""
        self._prefills.clear()
        self._waits.clear()
        for kept in (self._of, self._in_batch, self._again):
            kept.clear()

    # Meters

    def _go_on(self, now: float) -> None:
        """Up to this moment; one that has passed already is now."""
        at, active, _ = self._now
        ms = now - at
        if ms <= 0.0:
            return
        if not self._is_halted:
            active += ms
            self._prefills.go_on(ms)
        self._now = Meters(now, active, self._prefills.ms)

    def _rates(self, plan: Schedule, load: Load) -> Iterator[tuple[Span, float, int]]:
        """Each span's share of the iteration: by the prices, or by tokens while there are none yet."""
        total = self._costs.predict(load)
        active, again = self._prefills.active, self._again
        paying = sum(row.request.request_id not in again for row in plan.rows) if again else len(plan.rows)
        for row in plan.rows:
            name = row.request.request_id
            if (span := active.get(name)) is not None:
                cost = self._costs.span(row.start, row.num_tokens) / total if total else row.num_tokens / load.tokens
                yield span, cost, paying - (name not in again)

    # Those who run

    def _join(self, account: Account) -> None:
        """It has a seat: again, where it was preempted."""
        is_new = account.stage is Stage.WAITING
        if is_new:
            self._waits.close(account, self._now.active)
            account.first = self.n
        else:
            self._leave(account)
            account.stage = Stage.PREEMPTED
        account.span, account.span_ms = self._prefills.begin(account.request.request_id), 0.0
        if is_new:
            self._enter(account, Stage.PREFILL)
        else:
            self._again[account.request.request_id] = account

    def _enter(self, account: Account, stage: Stage) -> None:
        """It goes on in this stage, in which it shares iterations with others."""
        account.settle(self._now)
        account.stage = stage
        if stage is Stage.DECODE:
            self._end_span(account)
        elif account.span is not None:
            account.span_ms = account.span.ms
        if account.in_batch is None:
            account.in_batch, account.before = self._now.at, self._prefills.meters()
            self._in_batch[account.request.request_id] = account

    def _leave(self, account: Account) -> None:
        """It shares no iterations any more."""
        account.settle(self._now)
        name = account.request.request_id
        if account.in_batch is not None or name in self._again:
            account.last = self.n
        if account.in_batch is not None:
            self._prefills.bill(name, account.in_batch, account.before, account.bill)
            account.in_batch, account.before = None, {}
            self._in_batch.pop(name, None)
            oldest = next(iter(self._in_batch.values()), None)
            self._prefills.forget(self._now.at if oldest is None else oldest.in_batch or 0.0)
        self._again.pop(name, None)
        self._end_span(account)

    def _end_span(self, account: Account) -> None:
        if account.span is not None:
            self._prefills.end(account.span, self._now.at)
            account.caused += account.span.caused
            account.span = None
