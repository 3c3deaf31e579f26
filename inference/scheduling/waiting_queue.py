"""The waiting queue: who is next.

Knows: priorities, arrival, users and how much service each has had. Must not know: seats, blocks, the token budget.

Order, from the first question to the last:
1. Preempted requests come first, by rank: they were admitted before and hold up nobody who was not behind them.
2. The higher class. A request starts in the class of its priority and rises by one for each `ageing_ms` of waiting, up
   to the highest, so that none waits for ever behind more urgent ones.
3. The user who has had less: tokens computed, those of answers counted twice (see shares.py).
4. First come, first served.
A user who has as many requests running as one user may have is passed over until one of them ends.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import OrderedDict
from collections.abc import Iterable

from inference.params import PRIORITIES
from inference.scheduling.ledger import WAITING_SHOWN
from inference.scheduling.request import Request
from inference.scheduling.shares import Shares

PROMPT_WEIGHT, ANSWER_WEIGHT = 1, 2  # of a token in what a user has had, as in the paper
LOWEST, HIGHEST = PRIORITIES
PREEMPTED = HIGHEST + 1  # the standing of one that lost its blocks before


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
        self._ageing_ms = ageing_ms
        self.requests: dict[str, Request] = {}
        self.preempted: list[Request] = []  # by rank
        self.shares = Shares(max_running_per_user)
        self._classes = {level: _Class() for level in range(LOWEST, HIGHEST + 1)}
        self._level: dict[str, int] = {}  # of each request that waits in a class
        self._rises: list[tuple[float, int, int, Request]] = []  # heap: when, ticket, from which class, who
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
        self.shares.enter(request.user)
        self.requests[request.request_id] = request
        if len(self.requests) <= WAITING_SHOWN or request.user not in self._classes[request.params.priority].users:
            self.version += 1  # else it is behind others of this user, beyond the places that are shown
        self._enter(request, request.params.priority, now)

    def put_back(self, request: Request) -> None:
        """A preempted request: before all that never ran. From now on it outranks whoever was not preempted, too: were
        it to lose its blocks each time to those who came later, it might never end."""
        request.standing = PREEMPTED
        self.version += 1
        self._stops_running(request.user)
        self.requests[request.request_id] = request
        insort(self.preempted, request, key=_rank)

    def changed(self) -> None:
        """Something else than the order has changed that is told of those who wait."""
        self.version += 1

    def head(self, now: float) -> Request | None:
        """The request that is next; None where nobody waits, or only users who run as many as they may."""
        if self.preempted:
            return self.preempted[0]
        self._let_rise(now)
        for level in range(HIGHEST, LOWEST - 1, -1):
            if (user := self._next_user(self._classes[level])) is not None:
                return _first(self._classes[level].users[user])
        return None

    def admit(self, request: Request, new_tokens: int = 0) -> None:
        """It runs from now on, with the class that it had come to as its standing.

        new_tokens: of its prompt, to be computed. The user pays for them now, so that not all the first seats go to the
        first user; being computed again after a preemption costs nothing.
        """
        level = self._take_out(request)
        if level is not None:
            request.standing = level
            self.shares.charge(request.user, PROMPT_WEIGHT * new_tokens)
        self.shares.start(request.user)

    def remove(self, request: Request) -> None:
        """It waits no more, and will not run."""
        self._take_out(request)
        self.shares.leave(request.user)

    def ended(self, request: Request) -> None:
        """A running request has come to its end."""
        self._stops_running(request.user)
        self.shares.leave(request.user)

    def charge_answers(self, requests: Iterable[Request]) -> None:
        """Each of these running requests had one more token of its answer."""
        for request in requests:
            self.shares.charge(request.user, ANSWER_WEIGHT)

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
        capped = [user for user in group.users if user not in group.in_heap] if len(group.users) < count else []
        users = [*_smallest(group, count), *capped]
        lines = [iter(group.users[user].values()) for user in sorted(users, key=lambda user: self._place(group, user))]
        result = [next(line) for line in lines]
        while len(result) < count and (turn := [r for line in lines if (r := next(line, None)) is not None]):
            result += sorted(turn, key=lambda request: request.ticket)
        return result[:count]

    def _place(self, group: _Class, user: str) -> tuple[float, int, str]:
        return self.shares.had(user), _first(group.users[user]).ticket, user

    def _next_user(self, group: _Class) -> str | None:
        """The user whose turn it is in a class. Entries that are out of date are put right on the way."""
        while group.heap:
            user = group.heap[0][2]
            if user not in group.users or self.shares.at_cap(user):
                heapq.heappop(group.heap)
                group.in_heap.remove(user)  # `_stops_running` brings back whoever was at the cap
            elif (true := self._place(group, user)) != group.heap[0]:
                heapq.heapreplace(group.heap, true)
            else:
                return user
        return None

    def _take_out(self, request: Request) -> int | None:
        """From among the waiting; the class in which it was, None for a preempted one."""
        self.version += 1
        del self.requests[request.request_id]
        level = self._level.pop(request.request_id, None)
        if level is None:
            self.preempted.remove(request)
        else:
            self._leave(request, level)
        return level

    def _enter(self, request: Request, level: int, since: float) -> None:
        group, user = self._classes[level], request.user
        self._level[request.request_id] = level
        group.users.setdefault(user, OrderedDict())[request.request_id] = request
        if level < HIGHEST:
            self._rises_later(request, level, since + self._ageing_ms)
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
            heapq.heappush(group.heap, self._place(group, user))

    def _rises_later(self, request: Request, level: int, due: float) -> None:
        heapq.heappush(self._rises, (due, request.ticket, level, request))
        if len(self._rises) > 2 * len(self._level) + 1024:  # most of them are of requests that wait no more
            self._rises = [entry for entry in self._rises if self._still_waits(entry[3], entry[2])]
            heapq.heapify(self._rises)

    def _let_rise(self, now: float) -> None:
        while self._rises and self._rises[0][0] <= now:
            due, _, level, request = heapq.heappop(self._rises)
            if self._still_waits(request, level):
                self.version += 1
                self._leave(request, level)
                self._enter(request, level + 1, due)

    def _still_waits(self, request: Request, level: int) -> bool:
        """In this class; another one may wait under its name."""
        return self.requests.get(request.request_id) is request and self._level.get(request.request_id) == level

    def _stops_running(self, user: str) -> None:
        if self.shares.stop(user):
            self.version += 1
            for group in self._classes.values():
                if user in group.users:
                    self._push(group, user)


def _rank(request: Request) -> tuple[int, int]:
    return request.rank


def _first(waiting: OrderedDict[str, Request]) -> Request:
    return next(iter(waiting.values()))


def _smallest(group: _Class, count: int) -> list[str]:
    """Users of the first `count` entries of the heap that stand for someone: a walk from its top, parents before
    children, since a sort of all users would make an iteration's cost grow with how many wait."""
    result: list[str] = []
    border = [(group.heap[0], 0)] if group.heap else []
    while border and len(result) < count:
        entry, place = heapq.heappop(border)
        if entry[2] in group.users:
            result.append(entry[2])
        for child in (2 * place + 1, 2 * place + 2):
            if child < len(group.heap):
                heapq.heappush(border, (group.heap[child], child))
    return result
