"""/ws/scheduler/: the live picture of the batch, for staff and for whoever may watch, with a session or a key.

After `hello` a `snapshot`, then `iterations` frames. Newest wins: a viewer that falls far behind misses records and
never slows the engine or another viewer. Records carry (epoch, n), so a viewer sees what it missed. When an engine
comes, goes, or changes its state, a new snapshot says so.

A snapshot has the block map of each engine after its newest record: `blocks`, as /scheduler/blocks/ answers, or null,
and then frames of the type `blocks` bring it in parts (`start`: the first block of a part), if it is known at all. From
there on each record's `blocks` are applied to it. A viewer that misses a record (n is not one more than before in the
same epoch, or not 1 in a new one) has a wrong map and asks /scheduler/blocks/ for the newest. A map has (epoch, n):
what a viewer has of later records is to be applied to it, and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from playground.access.callers import SCHEDULER
from playground.sockets.base import Socket
from playground.sockets.broadcast import get_broadcast

MOST_BEHIND = 1 << 20  # bytes that may wait for a viewer beside what was the first to wait


class SchedulerSocket(Socket):
    right: ClassVar[str] = SCHEDULER

    async def opened(self) -> None:
        await super().opened()
        self._waiting: deque[str] = deque()
        self._behind = 0
        self._begin()

    def _begin(self) -> None:
        self._misses = False
        self.start("view", get_broadcast().view(self._tell))

    async def _tell(self, frames: Sequence[str]) -> None:
        """Send what the viewer has room for, and later the rest. A snapshot is sent whole, however long it is: one that
        was cut short where the room ends would be cut short each time. Whoever is too far behind misses what comes, and
        begins anew with a snapshot once it has read the rest."""
        self._misses = self._misses or self._behind > MOST_BEHIND
        if self._misses:
            return
        if is_waiting := bool(self._waiting):
            self._behind += sum(map(len, frames))
        self._waiting.extend(frames)
        if is_waiting:
            return
        while self._waiting and self.flow.has_room:
            await self._send_next()
        if self._waiting:
            self.start("room", self._send_waiting())

    async def _send_waiting(self) -> None:
        while self._waiting and self._open:
            await self.flow.until_room()
            await self._send_next()
        self._behind = 0
        if self._misses and self._open:
            self._begin()

    async def _send_next(self) -> None:
        await self.send_text(self._waiting[0])
        self._waiting.popleft()
