"""What prefill in shared iterations costs: whose it is, and what each one made others wait.

Knows: spans of prefill, the share of time that each takes. Must not know: parts of a receipt, the clock.
A span reaches from when a request joins the batch until its prompt is computed. It has a running sum, as a meter has,
so that whoever was in the batch meanwhile reads a difference: nothing is kept per pair of requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nlargest

MOST_KEPT = 4096  # spans that are over; beyond, the cheapest half is forgotten, since only the dearest are asked for


@dataclass(slots=True, eq=False)
class Span:
    """One request's way through its prompt.

    ms: what it cost.  caused: the same, times those who waited for it.  rate: its share of the time that goes by now.
    waiters: others in the batch now.  ended_at: ms of the engine's clock.
    """

    request_id: str
    ms: float = 0.0
    caused: float = 0.0
    rate: float = 0.0
    waiters: int = 0
    ended_at: float = 0.0


class Prefills:
    """All spans that somebody who is in the batch may still be charged for. ms: what all spans have cost so far."""

    def __init__(self) -> None:
        self.active: dict[str, Span] = {}
        self.ms = 0.0
        self._rate = 0.0
        self._over: deque[Span] = deque()  # in the order of their ends

    def begin(self, request_id: str) -> Span:
        span = self.active[request_id] = Span(request_id)
        return span

    def end(self, span: Span, at: float) -> None:
        """Its prompt is computed, or it left."""
        if self.active.get(span.request_id) is span:
            del self.active[span.request_id]
        self._rate = max(0.0, self._rate - span.rate) if self.active else 0.0
        span.rate, span.ended_at = 0.0, at
        if span.ms > 0.0:
            self._over.append(span)
        if len(self._over) > MOST_KEPT:
            dear = set(nlargest(MOST_KEPT // 2, self._over, key=lambda one: one.ms))
            self._over = deque(one for one in self._over if one in dear)

    def price(self, rates: Iterable[tuple[Span, float, int]]) -> None:
        """From now on time goes to these: each one's share of it, and how many wait for it."""
        for span in self.active.values():
            span.rate = 0.0
        self._rate = 0.0
        for span, rate, waiters in rates:
            span.rate, span.waiters = rate, waiters
            self._rate += rate

    def go_on(self, ms: float) -> None:
        """So much time went by."""
        if self._rate:
            self.ms += ms * self._rate
            for span in self.active.values():
                span.ms += ms * span.rate
                span.caused += ms * span.rate * span.waiters

    def meters(self) -> dict[Span, float]:
        """Where the spans under way stand now."""
        return {span: span.ms for span in self.active.values() if span.ms}

    def bill(self, request_id: str, since: float, before: dict[Span, float], bill: dict[str, float]) -> None:
        """Add to `bill`, by request, what others' spans cost since that moment, at which their meters stood so."""
        for span in self.active.values():
            _charge(span, request_id, before, bill)
        for span in reversed(self._over):
            if span.ended_at <= since:
                break
            _charge(span, request_id, before, bill)

    def forget(self, until: float) -> None:
        """Nobody in the batch was there before that moment."""
        while self._over and self._over[0].ended_at <= until:
            self._over.popleft()

    def clear(self) -> None:
        self.active.clear()
        self._over.clear()
        self._rate = 0.0


def _charge(span: Span, request_id: str, before: dict[Span, float], bill: dict[str, float]) -> None:
    ms = span.ms - before.get(span, 0.0)
    if ms > 0.0 and span.request_id != request_id:
        bill[span.request_id] = bill.get(span.request_id, 0.0) + ms
