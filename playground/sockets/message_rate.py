"""How many messages a socket may send (R15 of the promises): a token bucket, and when it is enough.

Knows: counts and time (monotonic). Must not know: messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import ceil

AT_ONCE = 3  # seconds' worth
ACK = 1 / 32  # of a message: a client may acknowledge often
ONE = 16 << 10  # characters that count as one message, begun ones too: a large one is work for everybody's event loop
PATIENCE = 60.0  # seconds of a breach that goes on
LULL = 2.0  # seconds without a refusal after which a breach is over


class MessageRate:
    """`per_second` messages a second, and after a while without any some seconds' worth at once. A large one counts as
    several, which are paid for afterwards, so that it has its turn as a small one has."""

    def __init__(self, per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_second = per_second
        self._clock = clock
        self._most = self._left = float(AT_ONCE * per_second)
        self._at = clock()
        self._breach_began = self._refused_at = float("-inf")

    def take(self, size: int = 0) -> bool:
        """Whether one more message, of so many characters, may come now."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self.per_second)
        self._at = now
        if self._left >= 1:
            self._left -= max(1, ceil(size / ONE))
            return True
        if now - self._refused_at > LULL:
            self._breach_began = now
        self._refused_at = now
        return False

    @property
    def seconds_left(self) -> float:
        """Until one more message may come, in tenths, rounded up."""
        return max(0.1, ceil(10 * (1 - self._left) / self.per_second) / 10)

    def give_back(self, part: float) -> None:
        """That message was a small one."""
        self._left += part

    @property
    def is_abuse(self) -> bool:
        """Whether the limit has been broken for as long as that is borne."""
        return self._refused_at - self._breach_began >= PATIENCE
