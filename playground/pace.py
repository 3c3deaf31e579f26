"""How fast requests end here lately, so that whoever finds no room can be told when to come back.

Knows: monotonic times of ends. Must not know: requests, the database.
"""

from __future__ import annotations

import time
from collections import deque

WITHIN = 60.0  # seconds that are looked back on
MOST = 1000  # ends that are looked back on
UNKNOWN = 5.0  # seconds that are named while nothing has ended lately


class Pace:
    def __init__(self) -> None:
        self._ends: deque[tuple[float, int]] = deque(maxlen=MOST)

    def note(self, count: int) -> None:
        """So many have ended just now."""
        if count:
            self._ends.append((time.monotonic(), count))

    @property
    def seconds_each(self) -> float:
        """Between the ends of two requests, on average."""
        now = time.monotonic()
        lately = [(at, count) for at, count in self._ends if now - at < WITHIN]
        if not lately:
            return UNKNOWN
        return max(now - lately[0][0], 1.0) / sum(count for _, count in lately)
