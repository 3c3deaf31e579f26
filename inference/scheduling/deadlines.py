"""Time limits of requests: in the queue, running, in all.

Knows: requests and moments of the engine's clock, in ms. Must not know: the clock itself, what ending one means.
A heap with the nearest deadline on top: an iteration looks at that one only. Entries of requests that have ended stay
until their time comes or until they are most of the heap.
"""

from __future__ import annotations

import heapq
from itertools import count
from math import inf

from inference.scheduling.request import Request, RequestState

Entry = tuple[float, int, str, Request]  # when, a number that breaks ties, which limit, whose


class Deadlines:
    """queue_ms, run_ms, total_ms: the limits; None for no limit."""

    def __init__(self, queue_ms: float | None, run_ms: float | None, total_ms: float | None) -> None:
        self._limits = {"queue": queue_ms, "run": run_ms, "total": total_ms}
        self._heap: list[Entry] = []
        self._numbers = count()
        self._tidy_at = 1024

    def arrived(self, request: Request) -> None:
        if not request.output_ids:  # else it has run elsewhere, and its age tells nothing of waiting
            self._push("queue", request, request.arrived_ms)
        self._push("total", request, request.arrived_ms)

    def started(self, request: Request, now: float) -> None:
        """Once in a request's life: a preempted one has run since then."""
        self._push("run", request, now)

    def expired(self, now: float) -> list[tuple[Request, str]]:
        """Requests whose time is up, each once, with a sentence."""
        result: dict[str, tuple[Request, str]] = {}
        while self._heap and self._heap[0][0] <= now:
            entry = heapq.heappop(self._heap)
            if _is_due(entry):
                result.setdefault(entry[3].request_id, (entry[3], self._sentence(entry[2])))
        return list(result.values())

    def next_ms(self) -> float:
        """The nearest moment at which a request may expire; infinite where there is none."""
        while self._heap and not _is_due(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else inf

    def _push(self, which: str, request: Request, since: float) -> None:
        limit = self._limits[which]
        if limit is None:
            return
        heapq.heappush(self._heap, (since + limit, next(self._numbers), which, request))
        if len(self._heap) > self._tidy_at:
            self._heap = [entry for entry in self._heap if _is_due(entry)]
            heapq.heapify(self._heap)
            self._tidy_at = max(1024, 2 * len(self._heap))

    def _sentence(self, which: str) -> str:
        seconds = f"{(self._limits[which] or 0) / 1000:g} s"
        return {
            "queue": f"the request waited for {seconds}, the longest that one may wait; try again when fewer do",
            "run": f"the request ran for {seconds}, the longest that one may run; a smaller max_tokens takes less",
            "total": f"the request took {seconds}, the longest that one may take",
        }[which]


def _is_due(entry: Entry) -> bool:
    """Whether the limit still applies."""
    _, _, which, request = entry
    if request.state is RequestState.FINISHED:
        return False
    return which != "queue" or request.started_ms is None
