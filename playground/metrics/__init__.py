"""What the web counts: plain functions for whoever knows that something happened. They return at once and never raise.

Knows: names of counters. Must not know: how they come into the broker (beat.py), how they are shown (exposition.py).
The engines count their own part (inference/serving/totals.py); families.py has all names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from inference.scheduling.receipt import PARTS
from inference.serving.client import Finish, Tally

tally = Tally()  # of this process
sockets: Counter[str] = Counter()  # open in this process, by kind; changed on the event loop only


def socket_opened(kind: str) -> None:
    """kind: which socket it is, such as "chat"; one of few words."""
    sockets[kind] += 1
    tally.add("sockets_opened_total", kind)


def socket_closed(kind: str, code: int | None) -> None:
    """code: of the close, where there was one."""
    sockets[kind] -= 1
    tally.add("sockets_closed_total", kind, str(code or 1006))


def deltas_sent(count: int = 1) -> None:
    """Pieces of answers, whichever door they left by."""
    tally.add("deltas_sent_total", n=count)


def refused(code: str) -> None:
    """An error was answered, of whatever kind, by either door."""
    tally.add("errors_total", code)


def requests_accepted(count: int = 1) -> None:
    """They are durable."""
    tally.add("requests_accepted_total", n=count)


def requests_refused(code: str, count: int = 1) -> None:
    """They were asked for and not accepted, so that they have no row."""
    tally.add("requests_refused_total", code, n=count)


def requests_put_back(count: int) -> None:
    """The broker had lost them."""
    tally.add("requests_put_back_total", n=count)


def first_delta_after(seconds: float) -> None:
    """From a request's arrival here until its first words were handed to whoever asked."""
    tally.observe("client_time_to_first_token_seconds", max(0.0, seconds))


def requests_ended(ends: Iterable[tuple[Finish, Mapping[str, Any]]]) -> None:
    """Of rows that have got their final state just now: how each ended, and its receipt."""
    for finish, receipt in ends:
        _ended(finish, {part: _seconds(receipt.get(part)) for part in (*PARTS, "total")})


def _ended(finish: Finish, seconds: Mapping[str, float]) -> None:
    engine = finish.engine
    tally.add("request_success_total", engine, finish.finish_reason)
    if finish.error_code:
        tally.add("request_failure_total", engine, finish.error_code)
    tally.observe("request_prompt_tokens", finish.prompt_tokens, engine)
    tally.observe("request_generation_tokens", finish.completion_tokens, engine)
    tally.observe("e2e_request_latency_seconds", seconds["total"], engine)
    tally.observe("request_queue_time_seconds", seconds["queue"], engine)
    if finish.started_at:
        tally.observe("request_inference_time_seconds", seconds["total"] - seconds["queue"], engine)
        tally.observe("request_prefill_time_seconds", seconds["prefill"], engine)
    if finish.first_token_at and finish.completion_tokens > 1:
        decode = max(0.0, finish.finished_at - finish.first_token_at)
        tally.observe("request_decode_time_seconds", decode, engine)
        each = decode / (finish.completion_tokens - 1)
        tally.observe("request_time_per_output_token_seconds", each, engine)
    for part in PARTS:
        if seconds[part]:
            tally.add("request_time_seconds_total", engine, part, n=seconds[part])


def _seconds(ms: Any) -> float:
    return max(0.0, float(ms)) / 1000 if isinstance(ms, int | float) else 0.0
