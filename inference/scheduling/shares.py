"""What each user has had, in weighted tokens, and how many requests each one has here.

Knows: users' names and numbers. Must not know: requests, their order.
The Virtual Token Counter (Sheng et al., "Fairness in serving large language models", OSDI 2024), with the virtual time
of weighted fair queueing: it rises by what is served, divided by the users who are here. Whoever comes starts there, so
nobody saves up by staying away; and a debt is caught up with after so much service, however many others come.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

MOST_DEBTS = 1000  # of users who are not here; the oldest are forgotten


class Shares:
    """max_running_per_user: None for no bound. Requests without a user have none."""

    def __init__(self, max_running_per_user: int | None = None) -> None:
        self._cap = max_running_per_user
        self._had: dict[str, float] = {}  # of users who are here
        self._debts: OrderedDict[str, float] = OrderedDict()  # of users who left with more than others had
        self._virtual_time = 0.0
        self._here: Counter[str] = Counter()  # requests that wait or run
        self._running: Counter[str] = Counter()

    def enter(self, user: str) -> None:
        """One more request of this user is here."""
        if user not in self._here:
            self._had[user] = max(self._debts.pop(user, 0.0), self._virtual_time)
        self._here[user] += 1

    def leave(self, user: str) -> None:
        """One of this user's requests is gone for good."""
        self._here[user] -= 1
        if self._here[user]:
            return
        del self._here[user]
        had = self._had.pop(user)
        if not self._here:
            self._debts.clear()  # with nobody there, nobody was kept waiting by what others had
        elif had > self._virtual_time:
            self._debts[user] = had
            if len(self._debts) > MOST_DEBTS:
                self._debts.popitem(last=False)

    def start(self, user: str) -> None:
        self._running[user] += 1

    def stop(self, user: str) -> bool:
        """One of this user's requests runs no more. Whether that brings the user below the cap."""
        was_at_cap = self.at_cap(user)
        self._running[user] -= 1
        if not self._running[user]:
            del self._running[user]
        return was_at_cap

    def charge(self, user: str, weighted_tokens: float) -> None:
        """Service that a user who is here had."""
        self._had[user] += weighted_tokens
        self._virtual_time += weighted_tokens / len(self._here)

    def had(self, user: str) -> float:
        return self._had[user]

    def running(self, user: str) -> int:
        return self._running[user]

    def has(self, user: str) -> bool:
        """Whether this user has a request here."""
        return user in self._here

    @property
    def has_cap(self) -> bool:
        return self._cap is not None

    def at_cap(self, user: str) -> bool:
        return self._cap is not None and user != "" and self._running[user] >= self._cap

    @property
    def is_empty(self) -> bool:
        return not (self._here or self._running or self._had or self._debts)
