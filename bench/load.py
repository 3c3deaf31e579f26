"""Throughput and latency over offered load, for the three policies: the lengths of a production trace, as a Poisson
stream.

Knows: rates, the trace, what is read from a run. Must not know: how a policy works, how a curve is drawn.

Lengths are those of bench/data's Azure trace, scaled down so that a small model on a processor meets loads from idle
to far too much: prompts by PROMPT_SCALE, answers by OUTPUT_SCALE. Prompts are random ids. The same requests at the
same moments for every policy.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from bench.burst import Request, random_ids
from bench.policies import Run, quantile, run
from inference import Engine
from inference.config import POLICIES

TRACE = Path(__file__).resolve().parent / "data" / "azure_llm_trace_2023_conv_300.csv"
PROMPT_SCALE, OUTPUT_SCALE = 8, 4
RATES = (2.0, 4.0, 8.0, 16.0, 32.0)  # requests a second
SECONDS = 20.0  # for which requests arrive, within COUNTS
COUNTS = (24, 160)  # least and most requests of one run


@dataclass(frozen=True, slots=True)
class Point:
    """One policy at one rate. Latencies in seconds; per_token: the median of latency over output tokens."""

    policy: str
    rate: float
    tokens_per_second: float
    latency_p50: float
    latency_p95: float
    per_token: float

    @classmethod
    def of(cls, policy: str, rate: float, result: Run) -> Point:
        latencies = result.latencies
        return cls(
            policy,
            rate,
            result.tokens_per_second,
            quantile(latencies, 50),
            quantile(latencies, 95),
            median(result.per_token),
        )


@dataclass(frozen=True, slots=True)
class Equal:
    """Throughput of two policies at one median latency per token (seconds). is_least: continuous can do more still:
    none of the measured rates brought it to that latency."""

    per_token: float
    static: float
    continuous: float
    is_least: bool

    @property
    def factor(self) -> float:
        return self.continuous / self.static


def trace_requests(count: int, vocab_size: int, seed: int = 0, path: Path = TRACE) -> list[Request]:
    """The first `count` requests of the trace, from its beginning again where it is shorter, scaled down."""
    with path.open(newline="") as file:
        rows = [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(file)]
    draw = random.Random(seed)
    requests = []
    for i in range(count):
        prompt, output = rows[i % len(rows)]
        ids = random_ids(draw, max(1, prompt // PROMPT_SCALE), vocab_size)
        requests.append((ids, max(1, output // OUTPUT_SCALE)))
    return requests


def count_at(rate: float, seconds: float = SECONDS, least: int = COUNTS[0]) -> int:
    """Requests of one run."""
    return min(COUNTS[1], max(least, round(rate * seconds)))


def curves(
    engine: Engine, vocab_size: int, rates: Iterable[float], seconds: float, least: int, say: Callable[[str], None]
) -> list[Point]:
    """All policies at all rates; requests arrive for `seconds`, or longer where fewer than `least` would."""
    points = []
    for rate in rates:
        requests = trace_requests(count_at(rate, seconds, least), vocab_size)
        for policy in reversed(POLICIES):
            say(f"{policy}, {rate:g} requests/s, {len(requests)} requests")
            engine.set_policy(policy)
            points.append(Point.of(policy, rate, run(engine, requests, rate)))
    return points


def at_equal_latency(points: Sequence[Point]) -> list[Equal]:
    """For each measured point of static: what continuous puts through at the same median latency per token."""
    static = [point for point in points if point.policy == "static"]
    continuous = [point for point in points if point.policy == "continuous"]
    found = []
    for point in static:
        through, is_least = throughput_at(continuous, point.per_token)
        if through:
            found.append(Equal(point.per_token, point.tokens_per_second, through, is_least))
    return found


def throughput_at(curve: Sequence[Point], per_token: float) -> tuple[float, bool]:
    """Throughput of one policy where its latency per token reaches a value, read from the line between the measured
    rates around it; and whether it stays below that at all rates, so that the throughput is the least it can do.

    0 where it is above that at the lowest rate already.
    """
    ordered = sorted(curve, key=lambda point: point.rate)
    if not ordered or ordered[0].per_token > per_token:
        return 0.0, False
    for below, above in pairwise(ordered):
        if above.per_token > per_token:
            part = (per_token - below.per_token) / (above.per_token - below.per_token)
            return below.tokens_per_second + part * (above.tokens_per_second - below.tokens_per_second), False
    return max(point.tokens_per_second for point in ordered), True
