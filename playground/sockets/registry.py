"""The sockets of this process: how many there may be, whether each may still be here, and that all hear of an end.

Knows: accounts by number, standings, time. Must not know: what a socket is for, ASGI, HTTP.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections import Counter
from functools import lru_cache
from typing import Protocol

from channels.db import database_sync_to_async
from django.conf import settings
from django.db import Error

from playground.access.callers import Caller
from playground.access.live_rights import Standing, still_good

LOOK_EVERY = 2.5  # seconds between looks at everybody's rights; R19 of the promises allows 5
GONE_WITHIN = 2.0  # seconds that a process that ends waits for its sockets

log = logging.getLogger("batchscope.sockets")


class Open(Protocol):
    """A socket, as far as it is looked at here."""

    caller: Caller
    standing: Standing

    async def end_of_rights(self) -> None: ...

    async def drain(self) -> None: ...


class OpenSockets:
    """`admit` when a socket has been let in, `leave` when it is gone."""

    def __init__(self, limit: int, per_user: int) -> None:
        self._limit, self._per_user = limit, per_user
        self._sockets: set[Open] = set()
        self._of_user: Counter[int] = Counter()
        self._looking: asyncio.Task[None] | None = None
        self._empty = asyncio.Event()
        self.is_draining = False

    def __len__(self) -> int:
        return len(self._sockets)

    def admit(self, socket: Open) -> str:
        """Take the socket in. Else: why not, for a person."""
        user = socket.caller.user
        if len(self._sockets) >= self._limit:
            return f"this server has {len(self._sockets)} sockets open, and {self._limit} are allowed; try again later"
        if socket.caller.is_limited and self._of_user[user.pk] >= self._per_user:
            return f"your account has {self._of_user[user.pk]} sockets open, and {self._per_user} are allowed"
        self._sockets.add(socket)
        self._of_user[user.pk] += 1
        if self._looking is None or self._looking.done():
            # A context of its own: asgiref ties database work to what started it, and ends with that.
            self._looking = asyncio.create_task(self._look(), context=contextvars.Context())
        return ""

    def leave(self, socket: Open) -> None:
        if socket not in self._sockets:
            return
        self._sockets.remove(socket)
        user_id = socket.caller.user.pk
        self._of_user[user_id] -= 1
        if not self._of_user[user_id]:
            del self._of_user[user_id]
        if not self._sockets:
            self._empty.set()

    async def _look(self) -> None:
        """Close the sockets of those who may not be here any more, with one check for all of them each time."""
        while self._sockets:
            await asyncio.sleep(LOOK_EVERY)
            try:
                await self._send_away()
            except Error as error:  # of the database: nobody can be demoted in it either
                log.warning("rights_not_checked: %s", type(error).__name__)
            except Exception:
                log.exception("rights_not_checked")

    async def _send_away(self) -> None:
        standings = {socket: socket.standing for socket in self._sockets}
        good = await database_sync_to_async(still_good)(set(standings.values()))
        for socket, standing in standings.items():
            if standing not in good and socket in self._sockets:
                await socket.end_of_rights()

    async def drain(self, within: float = GONE_WITHIN) -> None:
        """Tell everybody that this process ends, and close their sockets. Returns when they are gone, or in time."""
        self.is_draining = True
        self._empty.clear()
        until = time.monotonic() + within
        for socket in list(self._sockets):
            await socket.drain()
        while self._sockets and (left := until - time.monotonic()) > 0:
            timer = asyncio.get_running_loop().call_later(left, self._empty.set)
            await self._empty.wait()
            timer.cancel()


@lru_cache(maxsize=1)
def get_open_sockets() -> OpenSockets:
    """This process's."""
    return OpenSockets(settings.BATCHSCOPE.sockets_limit, settings.BATCHSCOPE.sockets_per_user)
