"""When the next iteration may begin: at once, or not yet, since the engine is paused or runs slowly.

Knows: moments of the engine's clock, in ms. Must not know: the clock, requests, who asked for it.
A closed gate stops iterations and nothing else: requests come and are cancelled, and deadlines go on. Nobody sleeps
here; whoever runs the engine asks when the gate opens and hears orders until then.
"""

from __future__ import annotations

from math import inf


class Gate:
    """paused: it opens only for steps that were granted.  slow_ms: from one iteration's begin to the next, at least."""

    def __init__(self) -> None:
        self.paused = False
        self.slow_ms = 0.0
        self._granted = 0
        self._began = -inf
        self._is_resting = False

    def pause(self) -> None:
        self.paused, self._granted = True, 0

    def resume(self) -> None:
        self.paused, self._granted = False, 0

    def grant(self) -> None:
        """One iteration, though it is paused, and as soon as there is something to do. Grants add up."""
        self._granted += 1

    def forget_grants(self) -> None:
        """Nothing was left to step through; what comes next shall find the engine paused."""
        self._granted = 0

    def opens_at(self, now: float) -> float:
        """When an iteration may begin: `now`, later, or never by itself."""
        if self.paused:
            return now if self._granted else inf
        return max(now, self._began + self.slow_ms) if self.slow_ms else now

    @property
    def is_resting(self) -> bool:
        """Whether it was last found closed only since the engine runs slowly."""
        return self._is_resting

    def why_closed(self, now: float) -> str | None:
        """Why no iteration may begin now; None: one may, and `begin` is to be called once it does."""
        opens = self.opens_at(now)
        self._is_resting = opens > now and not self.paused
        if opens > now:
            wait = f"the engine runs slowly, an iteration every {self.slow_ms:g} ms"
            return "the engine is paused" if self.paused else wait
        return None

    def begin(self, now: float) -> None:
        """An iteration begins. One in which nobody is uses up no grant: a step waits until a batch has filled."""
        self._began = now
        self._granted = max(0, self._granted - 1)
