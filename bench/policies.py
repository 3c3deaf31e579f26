"""The article's table, measured: the same requests under static, dynamic and continuous batching.

    python -m bench.policies [--model MODEL] [--dtype DTYPE] [--seats 16] [--rate REQUESTS_PER_SECOND]

The requests of bench.burst, all at once or, with --rate, as a Poisson stream. Same model, same kernels, same engine,
which is switched from policy to policy; greedy, EOS ignored. Latency is from arrival to the last token, as someone who
reads along sees it; `whole batch` is what it would be if a batch were handed back only when its slowest has ended, as
FasterTransformer did. Padding is counted, not computed, so throughput flatters static and dynamic.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import mean, quantiles
from typing import Any

from bench.burst import Request, burst, tokens_per_second
from inference import Engine, EngineConfig, SamplingParams
from inference.config import POLICIES
from inference.scheduling.ledger import IterationRecord


@dataclass
class Run:
    """Moments in seconds since the run began, by request."""

    arrived: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    released: dict[str, float] = field(default_factory=dict)  # when the seats of its batch were free again
    records: list[IterationRecord] = field(default_factory=list)
    made: dict[str, int] = field(default_factory=dict)  # output tokens
    seconds: float = 0.0

    @property
    def latencies(self) -> list[float]:
        """From arrival to the last token."""
        return [self.ended[name] - self.arrived[name] for name in self.ended]

    @property
    def per_token(self) -> list[float]:
        """Latency over output tokens, as Orca's figures have it."""
        return [(self.ended[name] - self.arrived[name]) / max(1, self.made[name]) for name in self.ended]

    @property
    def tokens_per_second(self) -> float:
        return sum(self.made.values()) / self.seconds


def arrivals(count: int, rate: float | None, seed: int = 0) -> Iterator[float]:
    """Moments in seconds of a Poisson stream from 0 on; without a rate all come at once."""
    draw, moment = random.Random(seed), 0.0
    for _ in range(count):
        yield moment
        moment += draw.expovariate(rate) if rate else 0.0


def run(engine: Engine, requests: Sequence[Request], rate: float | None) -> Run:
    """All requests as a stream of that rate, until the last has ended."""
    result, held = Run(), set[str]()
    due = list(enumerate(zip(arrivals(len(requests), rate), requests, strict=True)))
    begun = time.perf_counter()
    while due or engine.has_work:
        now = time.perf_counter() - begun
        while due and due[0][1][0] <= now:
            i, (moment, (prompt, wanted)) = due.pop(0)
            params = SamplingParams(max_tokens=wanted, temperature=0.0, ignore_eos=True)
            name = engine.add_request(prompt, params, request_id=f"r{i}", age=now - moment)
            result.arrived[name] = moment
        if not engine.has_work or engine.seconds_to_next_step() > 0:
            time.sleep(0.001)
            continue
        step = engine.step()
        now = time.perf_counter() - begun
        for finish in step.finishes:
            result.ended[finish.request_id] = now
            result.made[finish.request_id] = finish.completion_tokens
            held.add(finish.request_id)
        if step.record is not None:
            result.records.append(step.record)
            if not engine.scheduler.seats.idle:  # no seat is held any more
                result.released.update(dict.fromkeys(held, now))
                held.clear()
    result.seconds = time.perf_counter() - begun
    return result


def table_row(policy: str, run: Run, seats: int) -> dict[str, Any]:
    latency = run.latencies
    whole = [run.released[name] - run.arrived[name] for name in run.ended]
    busy = [record for record in run.records if record.rows]
    computed = sum(row.tokens for record in busy for row in record.rows)
    wasted = sum(record.padding + len(record.idle) for record in busy)
    return {
        "policy": policy,
        "tokens_per_second": round(run.tokens_per_second, 1),
        "latency_p50": round(quantile(latency, 50), 2),
        "latency_p95": round(quantile(latency, 95), 2),
        "whole_batch_p50": round(quantile(whole, 50), 2),
        "whole_batch_p95": round(quantile(whole, 95), 2),
        "seats_in_use": round(mean(len(record.rows) for record in busy) / seats, 3),
        "padding_waste": round(wasted / (wasted + computed), 3),
        "iterations": len(busy),
    }


def table(engine: Engine, requests: Sequence[Request], rate: float | None) -> Iterator[dict[str, Any]]:
    """A row for each policy, continuous last."""
    tokens_per_second(engine, burst(8, seed=9))  # warm: kernels built, memory touched
    for policy in reversed(POLICIES):
        engine.set_policy(policy)
        yield table_row(policy, run(engine, requests, rate), engine.config.max_num_seqs)


def quantile(values: Sequence[float], percent: int) -> float:
    """Of values in any order; a single one is all its quantiles."""
    return values[0] if len(values) == 1 else quantiles(values, n=100, method="inclusive")[percent - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"))
    parser.add_argument("--seats", type=int, default=16)
    parser.add_argument("--rate", type=float, help="requests a second; without it all come at once")
    options = parser.parse_args()
    config = EngineConfig(
        model=options.model, dtype=options.dtype, max_num_seqs=options.seats, prefix_caching=False, batch_delay=0.5
    )
    for row in table(Engine(config), burst(), options.rate):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
