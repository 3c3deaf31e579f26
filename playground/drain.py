"""How this web process ends (R30): from the first signal on it takes no new work, and goes when nothing is under way.

Knows: whether it drains, for how long still, and who is told what in which order. Must not know: what a socket or a
call is, ASGI, Twisted, signals. The one owner of "is draining": whoever takes work asks here.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import ceil
from typing import Protocol

from django.conf import settings

from inference.config import RequestRefused

LOOK_EVERY = 0.1  # seconds between looks at whether something is still under way
GONE_WITHIN = 1.5  # seconds that a process that ends waits for those it has dismissed
BACK_WITHIN = 5.0  # seconds that are enough for another process to take this one's place


class Group(Protocol):
    """Some of those who are served here. No method raises."""

    @property
    def is_busy(self) -> bool:
        """Whether one of them has something under way that is worth waiting for."""
        ...

    @property
    def is_empty(self) -> bool: ...

    async def announce_end(self) -> None: ...

    async def dismiss_idle(self) -> None: ...

    async def dismiss_all(self) -> None: ...


class Drain:
    """timeout: seconds that answers under way may still take."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._until: float | None = None  # monotonic
        self._hurried = asyncio.Event()

    @property
    def is_draining(self) -> bool:
        return self._until is not None

    @property
    def seconds_left(self) -> float:
        return max(0.0, (self._until or 0.0) - time.monotonic())

    def check(self) -> None:
        """Raises RequestRefused for new work while this process drains."""
        if self.is_draining:
            wait = max(BACK_WITHIN, ceil(self.seconds_left))
            words = f"this server is about to end and takes nothing new; send it again in {wait:.0f} s"
            raise RequestRefused("draining", words, wait)

    def hurry(self) -> None:
        """Wait for nothing more."""
        self._hurried.set()

    async def run(self, groups: Sequence[Group]) -> None:
        """Return when nobody is left, or when who is left had time enough."""
        self._until = time.monotonic() + self._timeout
        for group in groups:
            await group.announce_end()
        while self.seconds_left and not self._hurried.is_set():
            for group in groups:
                await group.dismiss_idle()
            if not any(group.is_busy for group in groups):
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurried.wait(), min(LOOK_EVERY, self.seconds_left))
        self._until = 0.0
        for group in groups:
            await group.dismiss_all()
        await _until(lambda: all(group.is_empty for group in groups), GONE_WITHIN)


async def _until(holds: Callable[[], bool], within: float) -> None:
    until = time.monotonic() + within
    while not holds() and time.monotonic() < until:
        await asyncio.sleep(0.01)


@lru_cache(maxsize=1)
def get_drain() -> Drain:
    """This process's."""
    return Drain(settings.BATCHSCOPE.drain_timeout)
