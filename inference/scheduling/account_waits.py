"""Why each request waited, and for how long.

Knows: what stopped the first in line, users at their cap, meters of active time. Must not know: the clock, who runs.
Nobody's account is touched while it just waits: all but a few are behind somebody, so only what is not so is noted. The
first in line has the reason that stopped it, from one plan to the next; each user at the cap has a meter; whoever has
come waits for the next plan first.
"""

from __future__ import annotations

from inference.scheduling.account import Account, Stage
from inference.scheduling.plan import Schedule
from inference.scheduling.receipt import ITERATION
from inference.scheduling.request import WaitReason
from inference.scheduling.shares import Shares

_CAPS_KEPT = 1024  # users whose time at the cap is remembered, before those who are gone are forgotten


class Waits:
    """`active`, everywhere: ms in which iterations could begin, up to now."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._new: dict[str, Account] = {}  # since the last plan
        self._first: tuple[Account, WaitReason, float] | None = None  # in line, why it waits, since when
        self._caps: dict[str, float] = {}  # ms at the cap, by user
        self._at_cap: set[str] = set()  # as of the last plan
        self._caps_at = 0.0  # up to when they are counted

    def arrive(self, account: Account) -> None:
        self._new[account.request.request_id] = account

    def count(self, active: float) -> None:
        """An iteration was planned: what was in force since the one before ends here."""
        self._count_first(active)
        ms, self._caps_at = active - self._caps_at, active
        for user in self._at_cap:
            self._caps[user] = self._caps.get(user, 0.0) + ms
        for account in self._new.values():
            self._see(account, active)
        self._new.clear()

    def note(self, plan: Schedule, first: Account | None, active: float) -> None:
        """What is in force from this plan on. first: in line, where it was stopped."""
        if first is not None and plan.blocked is not None and first.stage is Stage.WAITING:
            self._first = first, plan.blocked[0], active
        if not self._shares.has_cap:
            return
        users = self._at_cap.union(request.user for request in plan.joined)
        self._at_cap = {user for user in users if self._shares.at_cap(user)}
        if len(self._caps) > _CAPS_KEPT:
            self._caps = {user: ms for user, ms in self._caps.items() if self._shares.has(user)}

    def close(self, account: Account, active: float) -> None:
        """It waits no more."""
        if self._new.pop(account.request.request_id, None) is not None:
            self._see(account, active)
            return
        if self._first is not None and self._first[0] is account:
            self._count_first(active)
        if self._shares.has_cap:
            account.explain(WaitReason.USER_CAP, self._cap(account.request.user, active) - account.capped)

    def clear(self) -> None:
        self._new.clear()
        self._first = None

    def _see(self, account: Account, active: float) -> None:
        account.explain(ITERATION, active - account.since.active)
        account.capped = self._cap(account.request.user, active)

    def _cap(self, user: str, active: float) -> float:
        return self._caps.get(user, 0.0) + (active - self._caps_at if user in self._at_cap else 0.0)

    def _count_first(self, active: float) -> None:
        if self._first is not None:
            account, reason, since = self._first
            account.explain(reason, active - since)
            self._first = None
