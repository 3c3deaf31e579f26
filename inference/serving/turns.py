"""One at a time, and users take turns.

Knows: users' names. Must not know: what is done in a turn. For work of which one user may ask for much at once: another
one waits for what goes on and for one of each other user's, not for all of them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._is_taken = False
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # the next user first

    @asynccontextmanager
    async def turn(self, user: str) -> AsyncIterator[None]:
        """Wait for this user's turn, and hold it."""
        if self._is_taken:
            await self._stand_in_line(user)
        self._is_taken = True
        try:
            yield
        finally:
            self._pass_on()

    async def _stand_in_line(self, user: str) -> None:
        place = asyncio.get_running_loop().create_future()
        self._lines.setdefault(user, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # it was this one's turn already
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._lines:
            user, line = self._lines.popitem(last=False)
            place = line.popleft()
            if line:
                self._lines[user] = line
            if not place.done():  # else it was cancelled while it stood there
                place.set_result(None)
                return
        self._is_taken = False
