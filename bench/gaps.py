"""What people who read along feel: the gap between two tokens of 16 streams while long prompts arrive beside them.

Knows: the engine's steps. Must not know: how a chunk's length is chosen. One run for each setting of inter_token_ms.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bench.burst import random_ids
from bench.policies import quantile
from bench.steps import end
from inference import Engine, SamplingParams

STREAMS, STREAM_PROMPT = 16, 64
LONG_PROMPT = 1500
EVERY = 2.0  # seconds from one long prompt to the next
SETTINGS: tuple[float | None, ...] = (None, 200.0, 100.0, 50.0)


@dataclass(frozen=True, slots=True)
class Gaps:
    """All in ms. first_token: the newcomers' median from arrival to first token, None where none came so far.
    alone: the median gap while nothing but the streams ran."""

    setting: float | None
    alone: float
    p50: float
    p99: float
    longest: float
    first_token: float | None
    newcomers: int


def measure(engine: Engine, setting: float | None, seconds: float, vocab_size: int, every: float = EVERY) -> Gaps:
    """The engine is the caller's own, made with this setting, without prefix caching, idle."""
    draw = random.Random(2)
    room = engine.max_model_len - STREAM_PROMPT
    streams = {
        engine.add_request(
            random_ids(draw, STREAM_PROMPT, vocab_size),
            SamplingParams(max_tokens=room, temperature=0.0, ignore_eos=True),
        )
        for _ in range(STREAMS)
    }
    while not _all_decode(engine, streams):
        engine.step()
    last = time.perf_counter()
    ends, due = last + seconds, last + every / 2
    alone, gaps, first, under_way = [], [], [], set[str]()
    while last < ends or under_way:
        if due <= last < ends:
            newcomer = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
            under_way.add(engine.add_request(random_ids(draw, LONG_PROMPT, vocab_size), newcomer, age=last - due))
            due += every
        step, now = engine.step(), time.perf_counter()
        served = sum(row.request_id in streams for row in step.record.rows) if step.record else 0
        gaps += [(now - last) * 1e3] * served
        if not under_way:
            alone += [(now - last) * 1e3] * served
        last = now
        for finish in step.finishes:
            if finish.request_id in under_way:
                under_way.remove(finish.request_id)
                first.append(finish.receipt["details"]["ttft"])
    end(engine, list(streams))
    return Gaps(
        setting,
        quantile(alone or gaps, 50),
        quantile(gaps, 50),
        quantile(gaps, 99),
        max(gaps),
        quantile(first, 50) if first else None,
        len(first),
    )


def _all_decode(engine: Engine, streams: set[str]) -> bool:
    records = engine.ledger.records
    return bool(records) and streams <= {row.request_id for row in records[-1].rows if row.kind == "decode"}


def compare(
    make: Callable[[float | None], Engine], seconds: float, vocab_size: int, say: Callable[[str], None],
    settings: Iterable[float | None] = SETTINGS,
) -> list[Gaps]:  # fmt: skip
    """make: a fresh engine with inter_token_ms set so. Each is warmed by a short run of its own, which is not counted:
    an engine learns what its steps cost as it goes."""
    found = []
    for setting in settings:
        say(f"inter_token_ms {setting}")
        engine = make(setting)
        measure(engine, setting, min(seconds, 2 * EVERY), vocab_size)
        found.append(measure(engine, setting, seconds, vocab_size))
    return found
