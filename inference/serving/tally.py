"""Counts of what has happened, on their way into the broker: increments of counters and histograms, by name and labels.

Knows: names, labels, buckets. Must not know: the broker's commands (totals_store.py), what is counted.

A process holds only what the broker has not got yet. There the increments of all processes add up, so totals outlive
the processes that made them, and whoever asks, asks the broker.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

SEPARATOR = "\x1f"  # between a name, its labels, and the number of a bucket
SUM = "sum"  # in place of the number: the sum of what was observed

_SHORT = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
_LATENCY = (*_SHORT, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
# Upper bounds, in seconds or tokens: vLLM's, so that its boards and alerts map over, and a few below.
BUCKETS: dict[str, tuple[float, ...]] = {
    "time_to_first_token_seconds": (*_TTFT, 160.0, 640.0, 2560.0),
    "client_time_to_first_token_seconds": (*_TTFT, 160.0, 640.0, 2560.0),
    "inter_token_latency_seconds": (0.001, 0.0025, 0.005, *_ITL),
    "request_time_per_output_token_seconds": (0.001, 0.0025, 0.005, *_ITL),
    "e2e_request_latency_seconds": _LATENCY,
    "request_queue_time_seconds": (0.01, 0.1, *_LATENCY),
    "request_inference_time_seconds": _LATENCY,
    "request_prefill_time_seconds": (0.01, 0.1, *_LATENCY),
    "request_decode_time_seconds": _LATENCY,
    "request_prompt_tokens": _TOKENS,
    "request_generation_tokens": _TOKENS,
    "iteration_tokens_total": tuple(float(n) for n in (1, *(2**power for power in range(3, 15)))),
    "iteration_seconds": (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 10.0),
}


@dataclass(frozen=True, slots=True)
class Increments:
    """What is to be added, once, by field. number: of this process's, counted from 1."""

    number: int
    values: dict[str, float]


class Tally:
    """`add` and `observe` from any thread. `take` what is there, and once the broker has it say so with `sent`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, float] = {}
        self._taken: Increments | None = None
        self._number = 0

    def add(self, name: str, *labels: str, n: float = 1) -> None:
        field = SEPARATOR.join((name, *labels))
        with self._lock:
            self._values[field] = self._values.get(field, 0) + n

    def observe(self, name: str, value: float, *labels: str, n: int = 1) -> None:
        """That `value` came up n times, in a histogram of BUCKETS."""
        buckets, fields = _histogram(name, labels)
        bucket, total = fields[bisect_left(buckets, value)], fields[-1]
        with self._lock:
            values = self._values
            values[bucket] = values.get(bucket, 0) + n
            values[total] = values.get(total, 0) + value * n

    def take(self) -> Increments | None:
        """What the broker has not got yet. The same again where nobody said that it was sent: it may be there already,
        and the number tells."""
        with self._lock:
            if self._taken is None and self._values:
                self._number += 1
                self._taken, self._values = Increments(self._number, self._values), {}
            return self._taken

    def sent(self, increments: Increments) -> None:
        with self._lock:
            if self._taken is increments:
                self._taken = None


@lru_cache(maxsize=4096)
def _histogram(name: str, labels: tuple[str, ...]) -> tuple[tuple[float, ...], list[str]]:
    """Its bounds, and its fields: of each bucket, of the one beyond the last, and of the sum."""
    buckets = BUCKETS[name]
    start = SEPARATOR.join((name, *labels))
    return buckets, [f"{start}{SEPARATOR}{end}" for end in (*range(len(buckets) + 1), SUM)]
