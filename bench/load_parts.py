"""The parts of a run that are about many requests and those who wait: policies, load, queue, gaps, drafts.

Each takes the run's context and gives its text for the report. Knows: with which settings, quick or in full, and how it
is told. Must not know: flags, files.
"""

from __future__ import annotations

from typing import Any

from bench import burst, drafts, gaps, load, picture, policies, waiting
from bench.context import Bench
from bench.report import table, times


def three_policies(bench: Bench) -> str:
    engine = bench.engine(max_num_seqs=bench.seats, batch_delay=0.5)
    rows = list(policies.table(engine, burst.burst(12 if bench.quick else 64), None))
    words = f"All requests of the burst at once, {bench.seats} seats. Latency in s, from arrival to the last token."
    return f"{words}\n\n{table(tuple(rows[0]), [tuple(row.values()) for row in rows])}"


def over_load(bench: Bench) -> str:
    engine = bench.engine(max_num_seqs=bench.seats, batch_delay=0.5)
    rates, seconds, least = ((4.0, 16.0), 1.0, 8) if bench.quick else (bench.rates, load.SECONDS, load.COUNTS[0])
    points = load.curves(engine, bench.model.vocab_size, rates, seconds, least, bench.say)
    heads = ("policy", "requests/s", "output tokens/s", "latency p50, s", "latency p95, s", "p50 per token, ms")
    rows = [[p.policy, p.rate, p.tokens_per_second, p.latency_p50, p.latency_p95, 1e3 * p.per_token] for p in points]
    equal = [
        [1e3 * e.per_token, e.static, f"{'at least ' if e.is_least else ''}{e.continuous:.0f}", times(e.factor)]
        for e in load.at_equal_latency(points)
    ]
    texts = [
        f"Poisson arrivals, lengths of the Azure trace (prompts divided by {load.PROMPT_SCALE}, answers by "
        f"{load.OUTPUT_SCALE}), {bench.seats} seats.",
        table(heads, rows),
        "Throughput at equal median latency per token: static's measured points against continuous's curve.",
        table(("latency per token, ms", "static, tokens/s", "continuous, tokens/s", "factor"), equal),
    ]
    return "\n\n".join([*texts, *_pictured(bench, points)])


def _pictured(bench: Bench, points: list[load.Point]) -> list[str]:
    if bench.picture is None:
        return []
    try:
        picture.draw(points, bench.picture)
    except ImportError:
        bench.say("no picture: matplotlib is missing; pip install -e '.[bench]'")
        return []
    return ["![throughput and latency over offered load](../docs/pictures/load.svg)"]


def many_waiting(bench: Bench) -> str:
    few, many, ratio = waiting.compare(rounds=6 if bench.quick else 60)
    return (
        f"Scheduling an iteration of {waiting.SEATS} requests: {few:.3f} ms with 100 waiting, {many:.3f} ms with "
        f"10,000; median ratio {ratio:.3f}."
    )


def token_gaps(bench: Bench) -> str:
    settings, seconds = (gaps.SETTINGS[::3], 1.5) if bench.quick else (gaps.SETTINGS, 20.0)
    rows = gaps.compare(
        lambda setting: bench.engine(inter_token_ms=setting), seconds, bench.model.vocab_size, bench.say, settings
    )
    heads = (
        "inter_token_ms",
        "gap p50",
        "p99",
        "longest",
        "p50 without a prompt",
        "TTFT of newcomers, p50",
        "newcomers",
    )
    words = (
        f"{gaps.STREAMS} streams decode, and every {gaps.EVERY:.0f} s a prompt of {gaps.LONG_PROMPT:,} tokens arrives; "
        "all in ms. `p50 without a prompt`: while nothing is computed but the streams."
    )
    cells: list[list[Any]] = [
        ["none" if r.setting is None else r.setting, r.p50, r.p99, r.longest, r.alone, r.first_token, r.newcomers]
        for r in rows
    ]
    return f"{words}\n\n{table(heads, cells)}"


def guessing(bench: Bench) -> str:
    tokens, most = (24, 2) if bench.quick else (128, None)
    rows = drafts.compare(lambda count: bench.engine(draft_tokens=count), tokens, most, bench.say)
    names = [f"draft_tokens {count}, tokens/s" for count in (0, drafts.DRAFT_TOKENS)]
    cells: list[list[Any]] = [
        [drafts.KINDS[r.kind], r.plain, r.drafted, times(r.drafted / r.plain), r.steps, f"{r.alike} of {r.answers}"]
        for r in rows
    ]
    heads = ("prompts", *names, "ratio", "iterations a token", "same answers")
    return f"One stream, greedy, each answer to its own end, {tokens} tokens at most.\n\n{table(heads, cells)}"
