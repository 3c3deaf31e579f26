"""Counts in windows of time: a window begins with the first thing counted in it and ends a fixed time later.

Knows: the broker's Redis, which all web processes share, and this process's memory, which does while the broker is
away. Must not know: who is counted, what for, how much is allowed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from limits.aio.storage import MemoryStorage, RedisStorage, Storage
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from inference.serving.client import UNREACHABLE

PREFIX = "batchscope:limits"
WITHIN = 1.0  # seconds for an answer of the broker; whoever asks for work waits for this
ASK_AGAIN_AFTER = 2.0  # seconds in which a broker that was away is not asked

T = TypeVar("T")
log = logging.getLogger("batchscope.limits")


class Windows:
    """redis_url "": in memory only."""

    def __init__(self, redis_url: str = "") -> None:
        self._here = MemoryStorage()
        self._shared = _shared(redis_url) if redis_url else None
        self._away_until = 0.0  # of time.monotonic()

    async def count(self, key: str) -> int:
        """What is counted in the window of `key` so far; 0 where there is none."""
        return await self._ask(lambda storage: storage.get(key))

    async def add(self, key: str, seconds: int, amount: int) -> int:
        """Count `amount` more, in a new window of `seconds` where there is none; the count then."""
        return await self._ask(lambda storage: storage.incr(key, seconds, amount))

    async def seconds_left(self, key: str) -> float:
        """Until its window ends; 0 where there is none."""
        return max(0.0, await self._ask(lambda storage: storage.get_expiry(key)) - time.time())

    async def close(self) -> None:
        if self._shared is not None:
            await self._shared.bridge.get_connection().aclose()  # type: ignore[attr-defined]

    async def _ask(self, question: Callable[[Storage], Awaitable[T]]) -> T:
        if self._shared is not None and time.monotonic() >= self._away_until:
            try:
                return await question(self._shared)
            except (RedisError, *UNREACHABLE) as error:
                self._away_until = time.monotonic() + ASK_AGAIN_AFTER
                log.warning("limits_in_memory: the broker is away, %s", type(error).__name__)
        return await question(self._here)


def _shared(url: str) -> RedisStorage:
    return RedisStorage(
        "redis+" + url if url.startswith("unix://") else url,
        implementation="redispy",
        key_prefix=PREFIX,
        socket_timeout=WITHIN,
        socket_connect_timeout=WITHIN,
        retry=Retry(NoBackoff(), 1),  # one more try mends a connection that went stale  # type: ignore[arg-type]
    )
