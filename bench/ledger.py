"""`python -m bench.ledger`: what the ledger and 20 viewers of the scheduler page cost a decode step of 64 requests.

    python -m bench.ledger [--model MODEL] [--requests N] [--viewers N] [--seconds S] [--rounds N]

One engine in its worker, with a broker and a web process of its own, decodes all the while. Windows take turns: without
the store of segments, with it, and with viewers on /ws/scheduler/ as well, then backwards: contexts grow all the while,
and each is as often early as late. What is compared is the time from one iteration's begin to the next one's.

Knows: the worker's parts. Must not know: the web's inside. The viewers only read bytes, in a process of the lowest
priority, since the cores of a viewer's machine are not the server's; the web process has no such excuse.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from bench.steps import end, params_of, prompts_of
from bench.viewers import cpu_seconds, watching, web
from bench.worker import broker
from inference import Engine, EngineConfig
from inference.scheduling.ledger import IterationRecord
from inference.serving.client import EngineClient
from inference.serving.ledger_store import LedgerKeep
from inference.serving.link import BrokerLink
from inference.serving.messages import EngineStatus, Submission
from inference.serving.orders import Order, Stop
from inference.serving.worker import Worker

SETTLING = 1.0  # seconds at the begin of a window that don't count: viewers get their history then
STARTED_WITHIN = 120.0


@dataclass(frozen=True, slots=True)
class Window:
    name: str
    stored: bool
    viewers: int


class Span(NamedTuple):
    """A window that was measured: from when to when, ms; seconds of the web process's CPU time; bytes to viewers."""

    begun: float
    over: float
    web_cpu: float
    sent: int


@dataclass(frozen=True, slots=True)
class Figure:
    """ms from begin to begin.  web: share of a core that the web process takes.  change: of a turn's median step,
    against that of the same turn's first window, median of all turns; least, most: its quartiles.  sent: kB to all
    viewers."""

    name: str
    steps: int
    median: float
    mean: float
    web: float
    change: float
    least: float
    most: float
    sent: int


def measure(engine: Engine, requests: int, viewers: int, seconds: float, rounds: int) -> list[Figure]:
    """Call it from the main thread."""
    windows = [
        Window("no store", False, 0),
        Window("store", True, 0),
        Window(f"store, {viewers} viewers", True, viewers),
    ]
    epoch = engine.epoch = int(time.time())
    orders: SimpleQueue[Order] = SimpleQueue()
    settings = {"policy": engine.scheduler.policy.name}
    status = EngineStatus("bench", os.getpid(), "loading", False, time.time(), settings=settings, epoch=epoch)
    names: list[str] = []
    found: dict[str, list[Span]] = {window.name: [] for window in windows}
    with (
        broker() as url,
        tempfile.TemporaryDirectory(prefix="bs-") as folder,
        web(url, folder) as (address, cookies, pid),
    ):
        link = BrokerLink(url, "bench", f"bench@{epoch}", orders, status, LedgerKeep(folder=Path(folder) / "ledger"))
        add = link._ledger.add
        link.start()

        def turns() -> None:
            try:
                names.extend(asyncio.run(_submit(url, engine, requests)))
                _until_all_decode(engine, requests)
                for window in (windows + windows[::-1]) * rounds:
                    link._ledger.add = add if window.stored else _nothing  # type: ignore[method-assign]
                    with watching(address, cookies, window.viewers) as received:
                        time.sleep(SETTLING)
                        begun, cpu = time.perf_counter() * 1000, cpu_seconds(pid)
                        time.sleep(seconds)
                        over, cpu = time.perf_counter() * 1000, cpu_seconds(pid) - cpu
                    found[window.name].append(Span(begun, over, cpu, received()))
            finally:
                orders.put(Stop())

        thread = threading.Thread(target=turns, daemon=True)
        thread.start()
        Worker(engine, link, orders, status).run()
        thread.join()
        end(engine, names)
        link.close()
    records = list(engine.ledger.records)
    base = found[windows[0].name]
    return [figure(name, records, spans, base) for name, spans in found.items()]


def figure(name: str, records: list[IterationRecord], spans: list[Span], base: list[Span]) -> Figure:
    """base: the spans that these are compared with, one of each turn."""
    turns = [_gaps(records, span) for span in spans]
    changes = [
        statistics.median(gaps) / statistics.median(_gaps(records, other)) - 1
        for gaps, other in zip(turns, base, strict=True)
    ]
    gaps = [gap for turn in turns for gap in turn]
    web = sum(span.web_cpu for span in spans) / sum((span.over - span.begun) / 1000 for span in spans)
    least, middle, most = statistics.quantiles(changes, n=4)
    sent = sum(span.sent for span in spans) // 1000
    return Figure(name, len(gaps), statistics.median(gaps), statistics.mean(gaps), web, middle, least, most, sent)


def _gaps(records: list[IterationRecord], span: Span) -> list[float]:
    """ms from begin to begin of the neighbours that lie in a span."""
    gaps = [
        after.t0 - one.t0
        for one, after in pairwise(records)
        if after.n == one.n + 1 and span.begun <= one.t0 and after.t0 <= span.over
    ]
    if not gaps:
        raise ValueError("no two iterations fell into a window; take longer ones")
    return gaps


def report(figures: list[Figure]) -> str:
    lines = [
        "| | steps | median ms | mean ms | change of a turn's median: quartiles | web, of a core | kB to viewers |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in figures:
        change = f"{one.change:+.2%} ({one.least:+.2%} to {one.most:+.2%})"
        lines.append(
            f"| {one.name} | {one.steps} | {one.median:.2f} | {one.mean:.2f} | {change} | {one.web:.1%} | {one.sent} |"
        )
    return "\n".join(lines)


def _nothing(record: Any, line: bytes) -> None:
    """In place of the store's `add`."""


async def _submit(url: str, engine: Engine, requests: int) -> list[str]:
    client = EngineClient(url)
    params = {"max_tokens": params_of(engine).max_tokens, "temperature": 0.0, "ignore_eos": True, "seed": 0}
    names = [secrets.token_hex(16) for _ in range(requests)]
    try:
        for name, prompt in zip(names, prompts_of(requests, 40_000), strict=True):
            await client.submit(Submission(name, params, prompt_ids=prompt, user="bench", submitted_at=time.time()))
    finally:
        await client.close()
    return names


def _until_all_decode(engine: Engine, requests: int) -> None:
    deadline = time.monotonic() + STARTED_WITHIN
    while time.monotonic() < deadline:
        newest = engine.ledger.newest(1)
        if any(len(r.rows) == requests and all(row.kind == "decode" for row in r.rows) for r in newest):
            return
        time.sleep(0.1)
    raise RuntimeError(f"{requests} requests did not decode together within {STARTED_WITHIN:.0f} s")


def main() -> int:
    found = argparse.ArgumentParser(
        prog="python -m bench.ledger", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--model", default="smollm2", help="as BATCHSCOPE_MODEL")
    found.add_argument("--requests", type=int, default=64)
    found.add_argument("--viewers", type=int, default=20)
    found.add_argument("--seconds", type=float, default=4.0, help="of a window")
    found.add_argument("--rounds", type=int, default=4, help="two turns each")
    options = found.parse_args()
    config = EngineConfig(
        model=options.model, max_num_seqs=options.requests, prefix_caching=False, inter_token_ms=None
    )  # prompts are computed as fast as can be, since nobody measures that
    figures = measure(Engine(config), options.requests, options.viewers, options.seconds, options.rounds)
    print(report(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
