"""/ws/scheduler/: the live picture of the batch, for staff.

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

from playground.sockets.base import FORBIDDEN, Socket
from playground.sockets.broadcast import get_broadcast


class SchedulerSocket(Socket):
    def refusal(self) -> int | None:
        return super().refusal() or (None if self.user.is_staff else FORBIDDEN)

    async def opened(self) -> None:
        await super().opened()
        self.start("view", get_broadcast().view(self.send_text))
