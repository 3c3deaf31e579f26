"""The parts of a run that are about speed itself: the burst with peers and limits, a step, the service, a GPU.

Each takes the run's context and gives its text for the report. Knows: with which settings, quick or in full, and how it
is told. Must not know: flags, files.
"""

from __future__ import annotations

from typing import Any

from bench import burst, peers, roofline, service, steps, worker
from bench.context import Bench
from bench.limits import Costs, burst_limit, stream_limit
from bench.report import percent, table, times
from inference.execution.models.llama import LlamaModel

REQUESTS = (1, 16, 64)  # of the table of a step's parts
KEYS = {"w1": "W1", "single": "one stream"}


def w1(bench: Bench) -> str:
    """The burst and one stream, ours and each peer in turn, and the limits."""
    results = peers.in_turn(burst.command(bench.model_name, bench.dtype, bench.quick), bench.peers, bench.say)
    rows: list[list[Any]] = [[r["system"], r.get("w1"), r.get("single"), r["peak_mb"], _ready(r)] for r in results]
    lines = []
    for ratio in peers.ratios(results):
        words = ", ".join(f"{name} {times(ratio[key])}" for key, name in KEYS.items() if key in ratio)
        lines.append(f"Ratio to {ratio['system']}, mean of ours before and after: {words}.")
    if bench.costs is not None:
        limits, words = _limits(bench, bench.costs, [r for r in results if r["system"] == "batchscope"])
        rows += limits
        lines.append(words)
    heads = ("system", "W1, output tokens/s", "one stream, tokens/s", "peak memory, MB", "ready after start, s")
    return "\n\n".join([table(heads, rows), "  \n".join(lines)])


def _limits(bench: Bench, costs: Costs, ours: list[dict[str, Any]]) -> tuple[list[list[Any]], str]:
    """Rows of the table, and how far ours is from them."""
    peaks = bench.peaks
    most = burst_limit(costs, peaks, burst.burst(16 if bench.quick else 64))
    wide, read = stream_limit(costs, peaks, four_bits=False), stream_limit(costs, peaks)
    rows: list[list[Any]] = [
        ["limit: all products at the matrix peak", most, None, None, None],
        ["limit: 16-bit weights, read once a token", None, wide, None, None],
    ]
    if costs.four_bit_weights:
        rows.append(["limit: weights as ours reads them, most in 4 bits", None, read, None, None])
    reached, single = (sum(r[key] for r in ours) / len(ours) for key in KEYS)
    words = (
        f"Ours reaches {percent(reached / most)} of W1's limit, {percent(single / read)} of the last. Measured here: "
        f"bfloat16 products {peaks.bfloat16 / 1e9:.0f} GFLOP/s, float32 {peaks.float32 / 1e9:.0f}, memory read at "
        f"{peaks.read / 1e9:.1f} GB/s. A prompt token takes {costs.prompt_flop / 1e6:.0f} MFLOP, an output token "
        f"{costs.output_flop / 1e6:.0f}; one stream reads {costs.step_bytes() / 1e6:.0f} MB a token "
        f"({costs.step_bytes(four_bits=False) / 1e6:.0f} MB in 16 bits)."
    )
    return rows, words


def _ready(result: dict[str, Any]) -> float | None:
    return result["ready_at"] - result["started_at"] if "ready_at" in result else None


def where_a_step_goes(bench: Bench) -> str:
    tokens, repeats = (16, 3) if bench.quick else (64, 15)
    vocab = bench.model.vocab_size
    engine = bench.engine(inter_token_ms=None)  # all prompts at once, to come to the decodes
    phases: list[list[Any]] = []
    parts: list[list[Any]] = []
    for requests in REQUESTS:
        bench.say(f"{requests} requests")
        steps.measure_alone(engine, requests, 6, vocab)  # warm
        found = {
            "engine": steps.measure_alone(engine, requests, tokens, vocab),
            "worker": worker.measure_in_worker(engine, requests, tokens, vocab),
        }
        for who, step in found.items():
            phases.append([requests, who, *step.phases.values(), step.rest, step.total, percent(step.overhead)])
        if bench.costs is not None and isinstance(bench.model, LlamaModel):
            context = found["engine"].context
            pieces = steps.forward_parts(bench.model, requests, context, bench.costs, bench.peaks, repeats)
            parts += [_part(requests, piece) for piece in pieces]
    texts = [
        "Medians of decode steps, ms. `rest` is from the end of commit to the next step: the record, and in the worker "
        "also the step thread's share of publishing.",
        table(("requests", "in", *steps.PHASES, "rest", "step", "not forward"), phases),
    ]
    if parts:
        texts += [
            "The forward pass taken apart (bench/steps.py says how), ms. `least` is what the memory's bandwidth or the "
            "matrix peak allows.",
            table(("requests", "part", "ms", "least", "bound by", "takes"), parts),
        ]
    return "\n\n".join(texts)


def _part(requests: int, part: steps.Part) -> list[Any]:
    takes = times(part.ms / part.limit_ms) if part.ms else "too short to tell"
    return [requests, part.name, part.ms, part.limit_ms, part.bound, takes]


def through_sockets(bench: Bench) -> str:
    found = service.measure(bench.engine(), bench.model_name, bench.dtype, 16 if bench.quick else 64)
    return (
        f"Engine alone {found.alone:.0f} output tokens/s, through one WebSocket {found.service:.0f}: "
        f"{percent(found.share)}. `manage.py serve` printed its login link after {found.ready:.1f} s."
    )


def on_a_gpu(bench: Bench) -> str:
    rows = roofline.rows_here()
    if rows is None:
        return "There is no CUDA device here, so the roofline of an 8B-shaped model was not measured."
    cells = [[r.what, r.ms, f"{r.reached:.1f} {r.unit}", f"{r.most:.1f} {r.unit}", percent(r.share)] for r in rows]
    words = (
        "An 8B-shaped model in bfloat16 with random weights: decode against copy bandwidth, prefill against products."
    )
    return f"{words}\n\n{table(('what', 'ms', 'reached', 'measured most', 'share'), cells)}"
