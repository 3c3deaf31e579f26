"""Whether an engine hangs, judged from outside by what its heartbeat says and whether there is one at all.

Knows: heartbeats, time. Must not know: processes, the broker. It measures with one monotonic clock how long a heartbeat
says the same, so that a clock that is set, or a laptop that slept, is no alarm. Nor is a slow step, as long as it takes
less than the limit: `hang_timeout`, or thrice what a full iteration takes on this machine, as the engine itself has
measured it (a great model on a CPU may take a minute). A heartbeat alone proves nothing: the thread that sends it may
outlive the one that computes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inference.serving.messages import EngineStatus

EXPIRY = 3.0  # seconds for which the broker keeps a heartbeat that is not renewed
LEAST = 2.5  # seconds without a heartbeat at least: an engine tries a broker that was away again within two
LOADING = 60.0  # seconds without one while a model is loaded, or without the first iteration, which may compile kernels
TIMES = 3.0  # a full iteration's time, and no more, is no alarm


@dataclass(slots=True)
class Watchdog:
    """Of one process. hang_timeout: seconds."""

    hang_timeout: float
    _status: EngineStatus | None = None  # the newest heartbeat
    _same_since: float = field(default=-1.0)  # that it tells of the same progress
    _missing_since: float = field(default=-1.0)

    def judge(self, now: float, status: EngineStatus | None, stopped: bool = False) -> str:
        """Why the process must be killed; "" while all is well. now: monotonic seconds.  status: its heartbeat, if the
        broker has one.  stopped: whether the system does not let it run (SIGSTOP)."""
        return self._silent(now, stopped) if status is None else self._stuck(now, status)

    def unknown(self) -> None:
        """The broker could not be asked: nothing that was measured counts."""
        self._same_since = self._missing_since = -1.0

    def _stuck(self, now: float, status: EngineStatus) -> str:
        known, self._status = self._status, status
        self._missing_since = -1.0
        moved = known is None or known.progress_at != status.progress_at
        if moved or not status.busy or status.state != "ready" or self._same_since < 0:
            self._same_since = now
            return ""
        seconds = now - self._same_since
        if seconds <= self._limit(status):
            return ""
        return f"it has work, and has finished no iteration for {seconds:.0f} s"

    def _limit(self, status: EngineStatus) -> float:
        """Seconds that one iteration may take."""
        costs = status.costs
        if not costs.get("observed"):
            return max(self.hang_timeout, LOADING)
        tokens = status.settings.get("max_num_batched_tokens", 0)
        full = costs.get("fixed", 0.0) + tokens * costs.get("token", 0.0)
        return max(self.hang_timeout, TIMES * full / 1000)

    def _silent(self, now: float, stopped: bool) -> str:
        self._same_since = -1.0
        if self._missing_since < 0:
            self._missing_since = now
        seconds = now - self._missing_since
        if self._status is None or self._status.state == "loading":
            most = LOADING
        elif stopped:
            return "it was stopped from outside and does not go on"
        else:
            most = max(self.hang_timeout - EXPIRY, LEAST)
        return f"there is no word from it for {EXPIRY + seconds:.0f} s" if seconds > most else ""
