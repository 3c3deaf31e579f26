"""/ws/scheduler/: the live picture of the batch, for staff and for whoever may watch, with a session or a key.

After `hello` a `snapshot`, then `iterations` frames. Newest wins: a viewer that falls behind misses older records and
never slows the engine or another viewer. Records carry (epoch, n), so a viewer sees what it missed. When an engine
comes, goes, or changes its state, a new snapshot says so.

A snapshot has the block map of each engine after its newest record: `blocks`, as /scheduler/blocks/ answers, or null,
and then frames of the type `blocks` bring it in parts (`start`: the first block of a part), if it is known at all. From
there on each record's `blocks` are applied to it. A viewer that misses a record (n is not one more than before in the
same epoch, or not 1 in a new one) has a wrong map and asks /scheduler/blocks/ for the newest. A map has (epoch, n):
what a viewer has of later records is to be applied to it, and nothing else.
"""

from __future__ import annotations

from typing import ClassVar

from playground.access.callers import SCHEDULER
from playground.sockets.base import Socket
from playground.sockets.broadcast import get_broadcast


class SchedulerSocket(Socket):
    right: ClassVar[str] = SCHEDULER
    _missed = False

    async def opened(self) -> None:
        await super().opened()
        self.start("view", get_broadcast().view(self._tell))

    async def _tell(self, frame: str) -> None:
        """Send what the viewer has room for. One that could not be told something begins anew, with a snapshot."""
        if not self.flow.has_room:
            if not self._missed:
                self._missed = True
                self.start("room", self._begin_anew())
        elif not self._missed:
            await self.send_text(frame)

    async def _begin_anew(self) -> None:
        await self.flow.until_room()
        self._missed = False
        self.start("view", get_broadcast().view(self._tell))
