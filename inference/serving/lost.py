"""Runs whose output the broker lost: what is known of each when its request comes again.

Knows: when such a run had begun. Must not know: the engine, Redis commands, who lost what.

The broker may lose all that it held. The web side then puts every request back that is not over, and all of it is
computed anew: whatever was done before was done for nothing, and its receipt says so. When a run had begun, the row
tells, as far as the web heard of it; the engine that ran it knows better, if it still lives.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

from inference.scheduling.receipt import Past

MOST_KEPT = 4096  # runs that an engine remembers


@dataclass(frozen=True, slots=True)
class Lost:
    """All Unix seconds. started_at, first_token_at: of the first run that was lost; 0: it had not come so far."""

    put_back_at: float
    started_at: float = 0.0
    first_token_at: float = 0.0

    def past(self, submitted_at: float, now: float) -> Past:
        """Where the time of a request went that no engine has had since it was put back. One that had not begun waited
        all the time; what has gone by since it was put back is not told here."""
        end = now if self.started_at else min(self.put_back_at, now)
        since = min(submitted_at or self.started_at or end, end)
        return self.before(Past(earlier=1000 * (end - since)), since)

    def before(self, past: Past, since: float) -> Past:
        """What a log tells of a request that came at `since`, with what it can't tell: that the time before its first
        run, from when a lost one had begun, was no waiting."""
        if not self.started_at:
            return past
        waited = min(past.earlier, 1000 * max(0.0, self.started_at - since))
        ttft = 1000 * max(0.0, self.first_token_at - since) if self.first_token_at else past.ttft
        return replace(past, earlier=waited, stalled=past.stalled + past.earlier - waited, ttft=ttft)


class EndedRuns:
    """When runs had begun that ended in this process, told or dropped: any of them may turn out to be lost."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def keep(self, finish: Any) -> None:
        """finish: the engine's last word of a request."""
        if finish.started_at:
            self._runs.setdefault(finish.request_id, (finish.started_at, finish.first_token_at))
            if len(self._runs) > MOST_KEPT:
                self._runs.popitem(last=False)

    def known(self, request_id: str, lost: Lost) -> Lost:
        """What the row tells of a request that was put back, and what is known here. Of two runs the first counts."""
        started_at, first_token_at = self._runs.get(request_id, (0.0, 0.0))
        return replace(
            lost,
            started_at=_first(lost.started_at, started_at),
            first_token_at=_first(lost.first_token_at, first_token_at),
        )


def _first(one: float, other: float) -> float:
    return min(one, other) if one and other else one or other
