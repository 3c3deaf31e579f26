"""The waiting queue: who is next.

Knows: priorities, arrival, users and how much service each has had. Must not know: seats, blocks, the token budget.

Order, from the first question to the last:
1. Preempted requests come first, by rank: they were admitted before and hold up nobody who was not behind them.
2. The higher class. A request starts in the class of its priority and rises by one for each `ageing_ms` of waiting, up
   to the highest, so that none waits for ever behind more urgent ones.
3. The user who has had less: tokens computed, those of answers counted twice (the Virtual Token Counter; Sheng et al.,
   "Fairness in serving large language models", OSDI 2024). A user who was away starts at the level of those who are
   served now: nobody saves up, and nobody gets rid of a debt by leaving.
4. First come, first served.
A user who has as many requests running as one user may have is passed over until one of them ends.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import Counter, OrderedDict
from collections.abc import Iterable

from inference.params import PRIORITIES
from inference.scheduling.ledger import WAITING_SHOWN
from inference.scheduling.request import Request

PROMPT_WEIGHT, ANSWER_WEIGHT = 1, 2  # of a token in what a user has had, as in the paper
MOST_DEBTS = 1000  # of users who are not here; the oldest are forgotten
LOWEST, HIGHEST = PRIORITIES


class _Class:
    """The requests of one class. Lazy heap: no entry is later than its user's true place; on top it is put right."""

    def __init__(self) -> None:
        self.users: dict[str, OrderedDict[str, Request]] = {}
        self.heap: list[tuple[float, int, str]] = []  # (service had, ticket of the user's first request, user)
        self.in_heap: set[str] = set()


class WaitingQueue:
    """All waiting requests by name, and their order.

    ageing_ms: waiting that raises a request by one class.  max_running_per_user: None for no bound.
    """

    def __init__(self, ageing_ms: float = 10_000.0, max_running_per_user: int | None = None) -> None:
        self._ageing_ms, self._cap = ageing_ms, max_running_per_user
        self.requests: dict[str, Request] = {}
        self.preempted: list[Request] = []  # by rank
        self._classes = {level: _Class() for level in range(LOWEST, HIGHEST + 1)}
        self._level: dict[str, int] = {}  # of each request that waits in a class
        self._rises: list[tuple[float, int, int, Request]] = []  # heap: when, ticket, from which class, who
        self._had: dict[str, float] = {}  # service of each user, in weighted tokens
        self._now_serving = 0.0  # what the user served last had had then
        self._running: Counter[str] = Counter()  # of each user
        self._waiting: Counter[str] = Counter()
        self._tickets = 0
        self.version = 0  # another one where the first places may have changed
        self._listed: tuple[int, list[Request]] = (-1, [])

    def __len__(self) -> int:
        return len(self.requests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self.requests

    def add(self, request: Request, now: float) -> None:
        """A request that has not run here. `now`: ms of the engine's clock."""
        self._tickets += 1
        request.ticket = self._tickets
        user = request.user
        if not self._waiting[user] and not self._running[user]:
            self._had[user] = max(self._had.get(user, 0.0), self._now_serving)
        self.requests[request.request_id] = request
        self._waiting[user] += 1
        if len(self.requests) <= WAITING_SHOWN or user not in self._classes[request.params.priority].users:
            self.version += 1  # else it is behind others of this user, beyond the places that are shown
        self._enter(request, request.params.priority, now)

    def put_back(self, request: Request) -> None:
        """A preempted request: before all that never ran."""
        self.version += 1
        self._stops_running(request.user)
        self._waiting[request.user] += 1
        self.requests[request.request_id] = request
        insort(self.preempted, request, key=_rank)

    def head(self, now: float) -> Request | None:
        """The request that is next; None where nobody waits, or only users who run as many as they may."""
        if self.preempted:
            return self.preempted[0]
        self._let_rise(now)
        for level in range(HIGHEST, LOWEST - 1, -1):
            if (user := self._next_user(self._classes[level])) is not None:
                return next(iter(self._classes[level].users[user].values()))
        return None

    def admit(self, request: Request, new_tokens: int = 0) -> None:
        """It runs from now on, with the class that it had come to as its standing.

        new_tokens: of its prompt, to be computed. The user pays for them now, so that not all the first seats go to the
        first user; being computed again after a preemption costs nothing.
        """
        if request.request_id in self._level:
            request.standing = self._level[request.request_id]
            self._now_serving = max(self._now_serving, self._had[request.user])
            self.charge(request.user, PROMPT_WEIGHT * new_tokens)
        self._running[request.user] += 1
        self.remove(request)

    def remove(self, request: Request) -> None:
        """It waits no more."""
        self.version += 1
        del self.requests[request.request_id]
        level = self._level.pop(request.request_id, None)
        if level is None:
            self.preempted.remove(request)
        else:
            self._leave(request, level)
        self._waiting[request.user] -= 1
        self._forget_if_gone(request.user)

    def ended(self, request: Request) -> None:
        """A running request has come to its end."""
        self._stops_running(request.user)
        self._forget_if_gone(request.user)

    def charge_answers(self, requests: Iterable[Request]) -> None:
        """Each of these running requests had one more token of its answer."""
        for request in requests:
            self.charge(request.user, ANSWER_WEIGHT)

    def charge(self, user: str, weighted_tokens: float) -> None:
        """Service that a user had."""
        self._had[user] += weighted_tokens

    def at_cap(self, user: str) -> bool:
        return self._cap is not None and user != "" and self._running[user] >= self._cap

    def running_of(self, user: str) -> int:
        return self._running[user]

    def first_ones(self) -> list[Request]:
        """The first WAITING_SHOWN, nearly as they will be admitted: users of one class take turns."""
        if self._listed[0] == self.version:
            return self._listed[1]
        result = self.preempted[:WAITING_SHOWN]
        for level in range(HIGHEST, LOWEST - 1, -1):
            if len(result) >= WAITING_SHOWN:
                break
            result += self._turns(self._classes[level], WAITING_SHOWN - len(result))
        self._listed = self.version, result
        return result

    def _turns(self, group: _Class, count: int) -> list[Request]:
        """Each user's first request, then each one's second, and so on."""
        users = ((self._had[user], _first(waiting).ticket, user) for user, waiting in group.users.items())
        lines = [iter(group.users[user].values()) for _, _, user in heapq.nsmallest(count, users)]
        result = [next(line) for line in lines]
        while len(result) < count and (turn := [r for line in lines if (r := next(line, None)) is not None]):
            result += sorted(turn, key=lambda request: request.ticket)
        return result[:count]

    def _next_user(self, group: _Class) -> str | None:
        """The user whose turn it is in a class. Entries that are out of date are put right on the way."""
        while group.heap:
            had, ticket, user = group.heap[0]
            waiting = group.users.get(user)
            if waiting is None or self.at_cap(user):
                heapq.heappop(group.heap)
                group.in_heap.remove(user)  # `_stops_running` brings back whoever was at the cap
            elif (true := (self._had[user], _first(waiting).ticket, user)) != (had, ticket, user):
                heapq.heapreplace(group.heap, true)
            else:
                return user
        return None

    def _enter(self, request: Request, level: int, since: float) -> None:
        group, user = self._classes[level], request.user
        self._level[request.request_id] = level
        group.users.setdefault(user, OrderedDict())[request.request_id] = request
        if level < HIGHEST:
            heapq.heappush(self._rises, (since + self._ageing_ms, request.ticket, level, request))
        self._push(group, user)

    def _leave(self, request: Request, level: int) -> None:
        group = self._classes[level]
        waiting = group.users[request.user]
        del waiting[request.request_id]
        if not waiting:
            del group.users[request.user]

    def _push(self, group: _Class, user: str) -> None:
        if user not in group.in_heap:
            group.in_heap.add(user)
            heapq.heappush(group.heap, (self._had[user], _first(group.users[user]).ticket, user))

    def _let_rise(self, now: float) -> None:
        while self._rises and self._rises[0][0] <= now:
            due, _, level, request = heapq.heappop(self._rises)
            if self._level.get(request.request_id) == level:  # else it has left meanwhile
                self.version += 1
                self._leave(request, level)
                self._enter(request, level + 1, due)

    def _stops_running(self, user: str) -> None:
        was_at_cap = self.at_cap(user)
        self.version += was_at_cap
        self._running[user] -= 1
        if was_at_cap:
            for group in self._classes.values():
                if user in group.users:
                    self._push(group, user)

    def _forget_if_gone(self, user: str) -> None:
        """A user's books end with the last request; a debt is kept as long as it is one."""
        for counts in (self._running, self._waiting):
            if not counts[user]:
                del counts[user]
        if not self._running and not self._waiting:
            self._had.clear()  # with nobody there, nobody was kept waiting by what others had
        elif user not in self._running and user not in self._waiting:
            self._forget_debts(user)

    def _forget_debts(self, user: str) -> None:
        if self._had[user] <= self._now_serving:
            del self._had[user]
        elif len(self._had) > 2 * MOST_DEBTS:
            gone = [u for u in self._had if u not in self._running and u not in self._waiting]
            for other in gone[:-MOST_DEBTS]:
                del self._had[other]


def _rank(request: Request) -> tuple[int, int]:
    return request.rank


def _first(waiting: OrderedDict[str, Request]) -> Request:
    return next(iter(waiting.values()))
