"""Seats: the rows of the batch, by number.

Knows: numbers. Must not know: requests, policies. The lowest free seat is taken first, so that the batch is dense in a
picture. Under a policy that has batches, the seats of ended requests stay idle until the batch has ended.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable


class Seats:
    """Seats 0..count - 1, each free, taken or idle."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.idle: list[int] = []
        self._free = list(range(count))

    @property
    def free_count(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """The lowest free one. Raises IndexError where there is none."""
        return heapq.heappop(self._free)

    def give_back(self, seat: int, idle: bool = False) -> None:
        if idle:
            self.idle.append(seat)
        else:
            heapq.heappush(self._free, seat)

    def resize(self, count: int, taken: Iterable[int], most_idle: int) -> None:
        """Seats 0..count - 1 from now on. taken: of them, those that are; most_idle: how many may stay idle."""
        self.count = count
        self.idle = [seat for seat in self.idle if seat < count][:most_idle]
        self._free = sorted(set(range(count)).difference(taken, self.idle))

    def free_idle(self) -> None:
        for seat in self.idle:
            heapq.heappush(self._free, seat)
        self.idle = []
