"""Where the time of a decode step goes at 1, 16 and 64 requests, and how far each part is from its limit.

Knows: the engine's ledger, the model's parts. Must not know: peers, load.

The phases are the ledger's own (medians over many steps). What lies between two steps is measured by their beginnings,
once with the engine alone and once in the worker with a broker (bench.worker): so the step thread's share of publishing
is counted, and what the broker's thread takes from it besides.

The forward pass is taken apart from outside. Layers and attention run in one call, so the pass is timed twice: over the
context that the requests have, and over a context of one position. What the second lacks is attention; the head is
timed alone; the rest of the second pass is the layers: linear layers with the norms, rotation, activation and KV writes
that run in the same call, and the embedding before them.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from bench.burst import random_ids
from bench.limits import Costs
from bench.machine import Peaks
from inference import Engine, SamplingParams
from inference.execution.batch import Batch
from inference.execution.cache import KVCache
from inference.execution.models.llama import LlamaModel
from inference.scheduling.ledger import IterationRecord

PHASES = ("schedule", "forward", "sample", "commit")
PROMPT = 128  # tokens; the context is this and what is decoded
SWEEP = 1 << 24  # int64s: more than any processor's caches hold


@dataclass(frozen=True, slots=True)
class Step:
    """Medians in ms. rest: from the end of `commit` to the beginning of the next step."""

    requests: int
    context: int
    phases: dict[str, float]
    rest: float

    @property
    def total(self) -> float:
        return sum(self.phases.values()) + self.rest

    @property
    def overhead(self) -> float:
        """The share of all that is not the forward pass."""
        return 1 - self.phases["forward"] / self.total


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the forward pass: its time, and the least it could take, both in ms."""

    name: str
    ms: float
    limit_ms: float
    bound: str  # "memory" or "matrix peak"


def prompts_of(requests: int, vocab_size: int, seed: int = 1) -> list[list[int]]:
    draw = random.Random(seed)
    return [random_ids(draw, PROMPT, vocab_size) for _ in range(requests)]


def params_of(engine: Engine) -> SamplingParams:
    """Longer answers than are wanted: prompts take many iterations to be computed, and all are to decode together."""
    return SamplingParams(max_tokens=min(2048, engine.max_model_len - PROMPT), temperature=0.0, ignore_eos=True)


def measure_alone(engine: Engine, requests: int, steps: int, vocab_size: int) -> Step:
    """The engine by itself, stepped in a loop until all requests have decoded together for so many steps."""
    before = newest(engine)
    params = params_of(engine)
    names = [engine.add_request(prompt, params) for prompt in prompts_of(requests, vocab_size)]
    made = 0
    while made <= steps:
        step = engine.step()
        made += step.record is not None and is_full(step.record, requests)
    end(engine, names)
    return step_of(full_since(engine, before, requests), requests)


def newest(engine: Engine) -> int:
    return engine.ledger.records[-1].n if engine.ledger.records else 0


def end(engine: Engine, names: list[str]) -> None:
    """Cancel what runs; the engine is idle then."""
    for name in names:
        engine.cancel(name)
    while engine.has_work:
        engine.step()


def full_since(engine: Engine, before: int, requests: int) -> list[IterationRecord]:
    """Records after `before` of iterations in which so many requests decode and none does anything else."""
    return [record for record in list(engine.ledger.records) if record.n > before and is_full(record, requests)]


def step_of(records: list[IterationRecord], requests: int) -> Step:
    """Medians over full iterations. The first is left out, since it comes after one of another kind; of each pair that
    follow one another the first counts. Raises ValueError where there is none."""
    pairs = [(one, after) for one, after in pairwise(records[1:]) if after.n == one.n + 1]
    if not pairs:
        raise ValueError(f"there is no run of iterations in which {requests} requests decode")
    phases = {name: statistics.median(getattr(one, name) for one, _ in pairs) for name in PHASES}
    rest = statistics.median(after.t0 - one.t0 - sum(getattr(one, name) for name in PHASES) for one, after in pairs)
    context = round(statistics.mean(row.context for one, _ in pairs for row in one.rows))
    return Step(requests, context, phases, rest)


def is_full(record: IterationRecord, requests: int) -> bool:
    return len(record.rows) == requests and all(row.kind == "decode" for row in record.rows)


def decode_batch(requests: int, context: int, cache: KVCache) -> Batch:
    """A batch in which each request computes its position `context`, the last. Blocks lie in random order."""
    per_request = -(-context // cache.block_size)
    if requests * per_request > cache.num_blocks:
        raise ValueError(f"{requests} requests of {per_request} blocks do not fit {cache.num_blocks} blocks")
    blocks = np.random.default_rng(0).permutation(cache.num_blocks)[: requests * per_request]
    tables = blocks.astype(np.int32).reshape(requests, per_request)
    last = context - 1
    slots = tables[:, last // cache.block_size].astype(np.int64) * cache.block_size + last % cache.block_size
    rows = np.arange(requests, dtype=np.int64)
    return Batch(
        token_ids=rows % 90 + 100,
        positions=np.full(requests, last, dtype=np.int64),
        slots=slots,
        block_tables=tables,
        query_starts=np.arange(requests + 1, dtype=np.int32),
        context_lens=np.full(requests, context, dtype=np.int32),
        logits_rows=rows,
    )


@torch.inference_mode()
def forward_parts(
    model: LlamaModel, requests: int, context: int, costs: Costs, peaks: Peaks, repeats: int
) -> list[Part]:
    """The forward pass on the CPU, taken apart as the module's docstring says."""
    cache = model.new_cache(requests * -(-context // 16), 16)
    batch, short = decode_batch(requests, context, cache), decode_batch(requests, 1, cache)
    hidden = torch.randn(requests, model.config.hidden_size).to(model.dtype)
    caches = torch.ones(SWEEP, dtype=torch.int64)
    rounds = _in_turn(
        repeats,
        lambda: model.forward(batch, cache),
        lambda: model.forward(short, cache),
        caches.sum,  # the pass leaves the head's weights in the processor's caches, where a step does not find them
        lambda: model._head(hidden),
    )
    layers = statistics.median(without - head for _, without, _, head in rounds)
    attention = statistics.median(whole - without for whole, without, _, _ in rounds)
    head = statistics.median(head for *_, head in rounds)
    read, product = peaks.read / 1e3, peaks.of(costs.dtype) / 1e3  # a millisecond
    attention_bytes = requests * context * costs.kv_bytes
    return [
        _bounded("layers", layers, costs.layer_bytes(requests) / read,
                 2 * requests * costs.layer_weights / product),
        _bounded("attention", attention, attention_bytes / read,
                 requests * context * costs.attention_flop / product),
        _bounded("head", head, costs.head_bytes / read, 2 * requests * costs.head_weights / product),
    ]  # fmt: skip


def _bounded(name: str, ms: float, memory_ms: float, product_ms: float) -> Part:
    limit = max(memory_ms, product_ms)
    return Part(name, max(0.0, ms), limit, "memory" if limit == memory_ms else "matrix peak")


def _in_turn(repeats: int, *runs: Callable[[], Any]) -> list[list[float]]:
    """Milliseconds of each, in rounds in which all take turns: differences within one are to mean something."""
    return [[_milliseconds(run) for run in runs] for _ in range(repeats + 1)][1:]


def _milliseconds(run: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    run()
    return (time.perf_counter() - begun) * 1e3
