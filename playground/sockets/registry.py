"""Who is served by this process for longer, on sockets or by HTTP calls whose answers are under way: how many there may
be, whether each may still be here, and that all hear of an end.

Knows: accounts by number, standings, time. Must not know: what a guest is here for, ASGI, HTTP, when the end is.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import Counter
from collections.abc import Coroutine
from functools import lru_cache
from typing import Any, Protocol

from channels.db import database_sync_to_async
from django.conf import settings
from django.db import Error

from playground.access.callers import Caller
from playground.access.live_rights import Standing, still_good

LOOK_EVERY = 2.5  # seconds between looks at everybody's rights; R19 of the promises allows 5

log = logging.getLogger("batchscope.sockets")


class Guest(Protocol):
    """A socket or a call, as far as it is looked at here."""

    caller: Caller
    standing: Standing

    @property
    def is_busy(self) -> bool:
        """Whether something is under way for it that has an end."""
        ...

    async def end_of_rights(self) -> None: ...

    async def announce_end(self) -> None:
        """This process is about to end."""
        ...

    async def dismiss(self) -> None:
        """It ends now."""
        ...


class Guests:
    """`admit` when one has been let in, `leave` when it is gone. A group of playground.drain."""

    def __init__(self, limit: int, per_user: int) -> None:
        self._limit, self._per_user = limit, per_user
        self._guests: set[Guest] = set()
        self._of_user: Counter[int] = Counter()
        self._looking: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._guests)

    def admit(self, guest: Guest) -> str:
        """Take it in. Else: why not, for a person."""
        user = guest.caller.user
        if len(self._guests) >= self._limit:
            return f"this server has {len(self._guests)} sockets open, and {self._limit} are allowed; try again later"
        if guest.caller.is_limited and self._of_user[user.pk] >= self._per_user:
            return f"your account has {self._of_user[user.pk]} sockets open, and {self._per_user} are allowed"
        self._guests.add(guest)
        self._of_user[user.pk] += 1
        if self._looking is None or self._looking.done():
            # A context of its own: asgiref ties database work to what started it, and ends with that.
            self._looking = asyncio.create_task(self._look(), context=contextvars.Context())
        return ""

    def leave(self, guest: Guest) -> None:
        if guest not in self._guests:
            return
        self._guests.remove(guest)
        user_id = guest.caller.user.pk
        self._of_user[user_id] -= 1
        if not self._of_user[user_id]:
            del self._of_user[user_id]

    async def _look(self) -> None:
        """Send away those who may not be here any more, with one check for all of them each time."""
        while self._guests:
            await asyncio.sleep(LOOK_EVERY)
            try:
                await self._send_away()
            except Error as error:  # of the database: nobody can be demoted in it either
                log.warning("rights_not_checked: %s", type(error).__name__)
            except Exception:
                log.exception("rights_not_checked")

    async def _send_away(self) -> None:
        standings = {guest: guest.standing for guest in self._guests}
        good = await database_sync_to_async(still_good)(set(standings.values()))
        for guest, standing in standings.items():
            if standing not in good and guest in self._guests:
                await guest.end_of_rights()

    # As a group of playground.drain

    @property
    def is_busy(self) -> bool:
        return any(guest.is_busy for guest in self._guests)

    @property
    def is_empty(self) -> bool:
        return not self._guests

    async def announce_end(self) -> None:
        for guest in list(self._guests):
            await _told(guest.announce_end())

    async def dismiss_idle(self) -> None:
        for guest in list(self._guests):
            if not guest.is_busy:
                await _told(guest.dismiss())

    async def dismiss_all(self) -> None:
        for guest in list(self._guests):
            await _told(guest.dismiss())


async def _told(telling: Coroutine[Any, Any, None]) -> None:
    """One who can't be told keeps the others from nothing."""
    try:
        await telling
    except Exception:
        log.exception("drain_failed")


@lru_cache(maxsize=1)
def get_open_sockets() -> Guests:
    """This process's."""
    return Guests(settings.BATCHSCOPE.sockets_limit, settings.BATCHSCOPE.sockets_per_user)
