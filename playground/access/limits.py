"""How much an account, and a key, may ask for: requests and tokens, a minute and a day. One limiter for all doors.

Knows: quotas, who has which, and what is used of them. Must not know: HTTP, sockets, what a request asks.

Requests are counted when they are taken, tokens when an answer ends, since nobody knows before how many there will be:
the answer that passes a quota of tokens is given whole, and the next is refused. A key's quota is on top of its
account's. Superusers have no account's quota.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Any

from channels.db import database_sync_to_async

from inference.config import RequestRefused
from playground.access.callers import Caller
from playground.access.windows import Windows
from playground.models import AccountQuota, ApiKey

SPANS = {"minute": 60, "day": 86_400}  # seconds
FIELDS = tuple(f"{what}_per_{span}" for what in ("requests", "tokens") for span in SPANS)
REMEMBERED = 5.0  # seconds in which a quota that was looked up is not looked up again
MOST_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Quotas:
    """None: no limit."""

    requests_per_minute: int | None = None
    requests_per_day: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None

    @classmethod
    def of(cls, source: Any, default: Quotas | None = None) -> Quotas:
        """From anything with these fields; one that is None there is as in `default`."""
        values = {name: getattr(source, name) for name in FIELDS}
        return cls(**{name: getattr(default, name, None) if v is None else v for name, v in values.items()})


@dataclass(frozen=True, slots=True)
class Limit:
    """One number that must not be passed, and the window in which it counts."""

    holder: str  # "account:7" or "key:3"
    what: str  # "requests" or "tokens"
    span: str
    most: int

    @property
    def field(self) -> str:
        return f"{self.what}_per_{self.span}"

    @property
    def window(self) -> str:
        return f"{self.holder}/{self.what}/{self.span}"

    def words(self, used: int, more: int) -> str:
        who = "your account" if self.holder.startswith("account") else "this key"
        may, has = ("send", "sent") if self.what == "requests" else ("use", "used")
        most = f"{self.most} {self.what if self.most != 1 else self.what[:-1]} a {self.span}"
        beside = f", and these are {more}" if self.what == "requests" and more > 1 else ""
        return f"{who} may {may} {most} and has {has} {used}{beside}"


class Limiter:
    """One in a process. defaults: of accounts, as far as they have no quota of their own."""

    def __init__(self, redis_url: str = "", defaults: Quotas | None = None) -> None:
        self.windows = Windows(redis_url)
        self._defaults = defaults or Quotas()
        self._known: dict[tuple[int | None, int | None], tuple[float, list[Limit], list[Limit]]] = {}

    async def take(self, caller: Caller, requests: int = 1) -> None:
        """Count so many requests. Raises RequestRefused(rate_limited), and counts none, where a quota is used up."""
        limits = await self._limits_of(caller)
        for limit in limits:
            used = await self.windows.count(limit.window)
            more = requests if limit.what == "requests" else 1
            if used + more > limit.most:
                raise await self._refusal(limit, used, requests)
        counted = [limit for limit in limits if limit.what == "requests"]
        sums = [await self._add(limit, requests) for limit in counted]
        for limit, used in zip(counted, sums, strict=True):
            if used > limit.most:  # somebody else took the last ones meanwhile
                await self._uncount(counted, requests)
                raise await self._refusal(limit, used - requests, requests)

    async def give_back(self, caller: Caller, requests: int = 1) -> None:
        """What was taken did not come to be a request."""
        await self._uncount([limit for limit in await self._limits_of(caller) if limit.what == "requests"], requests)

    async def used(self, user_id: int, key_id: int | None, tokens: int) -> None:
        """Count the tokens of an answer that has ended."""
        account, key = await self._of_ids(user_id, key_id)
        for limit in (*account, *key):
            if limit.what == "tokens" and tokens:
                await self._add(limit, tokens)

    async def usage(self, limits: Iterable[Limit]) -> list[tuple[Limit, int]]:
        """What is used of each now."""
        return [(limit, await self.windows.count(limit.window)) for limit in limits]

    def look_up(self, user_id: int | None, key_id: int | None) -> tuple[list[Limit], list[Limit]]:
        """Limits of an account, and of a key. Reads the database."""
        own = AccountQuota.objects.filter(user=user_id).first() if user_id is not None else None
        key = ApiKey.objects.filter(pk=key_id).only(*FIELDS).first() if key_id is not None else None
        account = Quotas.of(own, self._defaults) if own else self._defaults
        return (
            _limits(f"account:{user_id}", account) if user_id is not None else [],
            _limits(f"key:{key_id}", Quotas.of(key)) if key else [],
        )

    async def close(self) -> None:
        await self.windows.close()

    async def _add(self, limit: Limit, amount: int) -> int:
        return await self.windows.add(limit.window, SPANS[limit.span], amount)

    async def _uncount(self, limits: Iterable[Limit], requests: int) -> None:
        for limit in limits:
            if await self.windows.count(limit.window) >= requests:
                await self._add(limit, -requests)

    async def _refusal(self, limit: Limit, used: int, requests: int) -> RequestRefused:
        words = limit.words(used, requests)
        if limit.most < (requests if limit.what == "requests" else 1):
            return RequestRefused("rate_limited", f"{words}; ask for less, or for a greater quota")
        wait = max(1.0, await self.windows.seconds_left(limit.window))
        return RequestRefused("rate_limited", f"{words}; try again in {in_words(wait)}", wait)

    async def _limits_of(self, caller: Caller) -> list[Limit]:
        key_id = caller.key.pk if caller.key is not None else None
        account, key = await self._of_ids(caller.user.pk, key_id)
        return [*(account if caller.is_limited else ()), *key]

    async def _of_ids(self, user_id: int | None, key_id: int | None) -> tuple[list[Limit], list[Limit]]:
        now = time.monotonic()
        name = (user_id, key_id)
        known = self._known.get(name)
        if known is None or known[0] <= now:
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            known = self._known[name] = (now + REMEMBERED, *await database_sync_to_async(self.look_up)(*name))
        return known[1], known[2]


def _limits(holder: str, quotas: Quotas) -> list[Limit]:
    """Days first: whoever has used up both is told of the longer wait."""
    return [
        Limit(holder, what, span, most)
        for span in reversed(SPANS)
        for what in ("requests", "tokens")
        if (most := getattr(quotas, f"{what}_per_{span}")) is not None
    ]


def in_words(seconds: float) -> str:
    """Rounded up, so that whoever comes back then is in time: "23 s", "12 min", "5 h 10 min"."""
    if seconds <= 120:
        return f"{ceil(seconds)} s"
    minutes = ceil(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
