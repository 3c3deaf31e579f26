"""What is new for those who wait: their place, the reason, the estimate.

Knows: what was told last. Must not know: how places are found, how news travel. At most twice a second per request, and
only what has changed: an estimate that comes down as time goes by is what was said already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from inference.scheduling.line import Place
from inference.serving.messages import Queued

PAUSE = 0.5  # seconds between two tellings
ETA_OFF = (500.0, 0.2)  # ms, and share: an estimate further off than both is told anew


class QueueNews:
    """`of` is asked after each step, and looks at the line only where it is time to."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[Queued, float]] = {}
        self._next = 0.0

    def of(self, places: Callable[[], Iterable[Place]], now: float) -> list[Queued]:
        """now: seconds of any steady clock."""
        if now < self._next:
            return []
        self._next = now + PAUSE
        before, self._told = self._told, {}
        news = []
        for place in places():
            told = before.get(place.request_id)
            if told is None or _differs(place, *told, now):
                told = Queued(*place), now
                news.append(told[0])
            self._told[place.request_id] = told
        return news


def _differs(place: Place, told: Queued, at: float, now: float) -> bool:
    if (place.position, place.reason) != (told.position, told.reason):
        return True
    if place.eta_ms is None or told.eta_ms is None:
        return place.eta_ms is not told.eta_ms
    off = abs(place.eta_ms - max(0.0, told.eta_ms - 1000 * (now - at)))
    return off > ETA_OFF[0] and off > ETA_OFF[1] * place.eta_ms
