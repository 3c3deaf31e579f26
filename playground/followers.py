"""Who still reads an answer, and what happens when nobody does: after a grace its request is given up.

Knows: counts and timers (monotonic). Must not know: sockets, the database, how a request is cancelled.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from inference.serving.client import end_tasks


class Followers:
    """`give_up` is called with a request id, a grace after its last follower left, unless one has come since.

    `count` tells other processes (+1, -1) and asks how many followers there are over all of them (0).
    """

    def __init__(self, count: Callable[[str, int], Awaitable[int]], give_up: Callable[[str], Awaitable[None]]) -> None:
        self._count, self._give_up = count, give_up
        self._here: Counter[str] = Counter()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def attach(self, request_id: str) -> None:
        self._here[request_id] += 1
        self._disarm(request_id)
        self._spawn(self._count(request_id, 1))

    def detach(self, request_id: str, grace: float | None) -> None:
        """One follower left. `grace` None: the request is over, so nothing is left to give up."""
        self._here[request_id] -= 1
        if self._here[request_id] <= 0:
            del self._here[request_id]
            if grace is not None:
                self.arm(request_id, grace)
        self._spawn(self._count(request_id, -1))

    def arm(self, request_id: str, grace: float) -> None:
        """Give the request up after `grace` seconds unless somebody follows it by then."""
        self._disarm(request_id)
        loop = asyncio.get_running_loop()
        # A context of its own: one that comes from a view would tie its database work to a thread that has ended.
        context = contextvars.Context()
        self._timers[request_id] = loop.call_later(grace, self._expire, request_id, context=context)

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        await end_tasks(self._tasks)

    def _disarm(self, request_id: str) -> None:
        if timer := self._timers.pop(request_id, None):
            timer.cancel()

    def _expire(self, request_id: str) -> None:
        self._timers.pop(request_id, None)
        self._spawn(self._consider(request_id))

    async def _consider(self, request_id: str) -> None:
        if await self._count(request_id, 0) <= 0 and request_id not in self._here:
            await self._give_up(request_id)

    def _spawn(self, work: Awaitable[object]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
