"""What an iteration's scheduling costs with 10,000 requests waiting against 100: the queue's length must not be felt.

Knows: the scheduler. Must not know: models, torch. All seats decode; as one ends, the next joins and another arrives,
so the number of those who wait stays. Both schedulers take turns, a few hundred iterations at a time.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator

from inference.config import EngineConfig, SamplingParams
from inference.scheduling.blocks import BlockPool
from inference.scheduling.factory import new_scheduler
from inference.scheduling.request import Request
from inference.scheduling.scheduler import Scheduler

SEATS, USERS = 64, 50
PROMPT, ANSWER = 100, 64  # tokens
ITERATIONS = 200  # of one before it is the other's turn


class Line:
    """A scheduler before which always `waiting` requests wait."""

    def __init__(self, waiting: int) -> None:
        config = EngineConfig(max_num_seqs=SEATS, prefix_caching=False)
        self._scheduler: Scheduler = new_scheduler(config, BlockPool(SEATS * 16, config.block_size), 2048)
        self._waiting, self._arrived, self._now = waiting, 0, 0.0
        while self._arrived < waiting + SEATS:
            self._arrive()
        while len(self._scheduler.running) < SEATS:
            self._iterate()

    def milliseconds(self, iterations: int) -> float:
        """Of an iteration, on average: plan, ledger rows and reasons, commit, arrivals."""
        begun = time.perf_counter()
        for _ in range(iterations):
            self._iterate()
        return (time.perf_counter() - begun) * 1e3 / iterations

    def _arrive(self) -> None:
        self._arrived += 1
        # Lengths differ, so that requests end one by one and not all in one iteration.
        params = SamplingParams(max_tokens=ANSWER // 2 + self._arrived * 37 % ANSWER)
        user = f"u{self._arrived % USERS}"
        request = Request(f"r{self._arrived}", [7] * PROMPT, params, 0, user, arrived_ms=self._now)
        self._scheduler.add(request, self._now)

    def _iterate(self) -> None:
        self._now += 0.01  # little: nobody is to wait so long as to rise
        plan = self._scheduler.schedule(self._now)
        plan.ledger_rows()
        self._scheduler.waiting_reasons(plan)
        self._scheduler.commit(plan)
        for row in plan.rows:
            if row.samples:
                request = row.request
                request.output_ids.append(9)
                if len(request.output_ids) == request.params.max_tokens:
                    self._scheduler.remove(request)
        while len(self._scheduler.waiting) < self._waiting:
            self._arrive()


def compare(few: int = 100, many: int = 10_000, rounds: int = 30) -> tuple[float, float, float]:
    """Milliseconds of an iteration with few and with many waiting, medians, and the median of the rounds' ratios."""
    lines = Line(few), Line(many)
    measured = list(_rounds(lines, rounds))
    few_ms, many_ms = (statistics.median(times) for times in zip(*measured, strict=True))
    return few_ms, many_ms, statistics.median(b / a for a, b in measured)


def _rounds(lines: tuple[Line, Line], rounds: int) -> Iterator[tuple[float, float]]:
    for i in range(rounds):
        gc.collect()
        first = i % 2  # whoever is second finds the caches as the first has left them
        times = {j: lines[j].milliseconds(ITERATIONS) for j in (first, 1 - first)}
        yield times[0], times[1]
