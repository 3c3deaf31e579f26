"""Counters of a whole service equal the sums of its rows, at once, and after its processes were killed; and its logs
say what happened to each request, but nothing of what was asked and answered."""

import asyncio
import contextlib
import sqlite3
import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.server import Answer

ROWS = """
select count(*), sum(prompt_tokens), sum(completion_tokens), sum(cached_tokens),
       sum(state in ('completed', 'cancelled', 'failed', 'expired'))
from playground_inferencerequest
"""
REASONS = "select finish_reason, count(*) from playground_inferencerequest group by finish_reason"
QUEUE = 3


class Metrics:
    """One scrape."""

    def __init__(self, text):
        self._samples = [s for family in text_string_to_metric_families(text) for s in family.samples]

    def by(self, name, label):
        """Sums over all other labels."""
        found = {}
        for sample in self._samples:
            if sample.name == "batchscope:" + name:
                found[sample.labels[label]] = found.get(sample.labels[label], 0) + sample.value
        return found

    def sum(self, name):
        return sum(sample.value for sample in self._samples if sample.name == "batchscope:" + name)


def scrape(server):
    answer = httpx.get(server.base_url + "/metrics", cookies=server.cookies, timeout=30.0)
    answer.raise_for_status()
    return Metrics(answer.text)


def rows(server, query):
    with contextlib.closing(sqlite3.connect(server.data_dir / "batchscope.sqlite3")) as database:
        return database.execute(query).fetchall()


def check_against_rows(server, engine_killed=False):
    """Every counter that rows know too, with one scrape. An engine that is killed may take its last counts of prefix
    hits with it, never those of tokens and ends."""
    metrics = scrape(server)
    [(count, prompt, completion, cached, final)] = rows(server, ROWS)
    assert count == final
    assert metrics.sum("requests_accepted_total") == count
    ended = metrics.by("request_success_total", "finished_reason")
    assert {reason: n for reason, n in ended.items() if n} == dict(rows(server, REASONS))
    for name in (
        "e2e_request_latency_seconds_count",
        "request_prompt_tokens_count",
        "request_queue_time_seconds_count",
    ):
        assert metrics.sum(name) == count, name
    assert metrics.sum("request_prompt_tokens_sum") == prompt
    assert metrics.sum("request_generation_tokens_sum") == completion
    counted = [metrics.sum(f"{name}_total") for name in ("prompt_tokens", "generation_tokens", "prefix_cache_hits")]
    assert counted[:2] == [prompt, completion]
    assert counted[2] == cached or engine_killed
    return metrics


async def ask(chat, text, **params):
    return await chat.generate(text, temperature=0, **params)


async def refused(chat, text):
    await chat.send(type="generate", messages=[{"role": "user", "content": text}], params={})
    return (await chat.receive_type("error"))["code"]


async def finished(chat, request_id):
    return (await chat.read(request_id, Answer())).finished["finish_reason"]


@pytest.fixture
def server(make_server):
    server = make_server(queue_limit=str(QUEUE), log_level="DEBUG", max_model_len="400")
    server.start().login()
    return server


async def test_counters_equal_the_sums_of_the_rows(server, story):
    """Five answered, one failed, three cancelled, two refused: 9 rows and 9 ends, 2 refused under their own name."""
    async with server.chat() as chat, server.chat() as other:
        for n in range(5):
            assert await finished(chat, await ask(chat, f"story {n} please", max_tokens=10 + n)) == "length"
        assert await finished(chat, await ask(chat, "a prompt that is too long " * 100)) == "error"
        running = [await ask(chat, f"story {n} please", max_tokens=300) for n in range(QUEUE)]
        await chat.receive_type("delta")
        assert [await refused(other, "one too many") for _ in range(2)] == ["queue_full"] * 2
        await asyncio.sleep(0.5)
        busy = scrape(server)
        assert busy.sum("num_requests_running") + busy.sum("num_requests_waiting") == QUEUE
        assert busy.by("sockets_open", "kind") == {"chat": 2}
        for request_id in running:
            await chat.send(type="cancel", request_id=request_id)
        ended = []
        while len(ended) < QUEUE:
            ended.append((await chat.receive_type("finished"))["finish_reason"])
        assert ended == ["cancelled"] * QUEUE
        deadline = time.monotonic() + 2.0
        while (idle := scrape(server)).sum("engine_busy") and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        for gauge in ("num_requests_running", "num_requests_waiting", "requests_unclaimed", "kv_cache_usage_perc"):
            assert idle.sum(gauge) == 0, gauge
        metrics = check_against_rows(server)
    assert metrics.by("request_success_total", "finished_reason") == {"length": 5, "error": 1, "cancelled": 3}
    assert metrics.by("request_failure_total", "code") == {"prompt_too_long": 1}
    assert metrics.by("requests_refused_total", "code") == {"queue_full": 2}
    assert sum(metrics.by("request_success_total", "finished_reason").values()) + 2 == 11
    assert metrics.sum("time_to_first_token_seconds_count") == 8
    assert metrics.by("engine_starts_total", "engine") == {"engine-1": 1}
    check_logs(server, [story(n) for n in range(5)])


def check_logs(server, answers):
    events = {}
    for line in server.lines:
        for event in ("accepted", "finished", "refused", "claimed", "first_token", "ended", "cancel_asked"):
            if f"event={event} " in line + " " and "request_id=" in line + (
                "request_id=" if event == "refused" else ""
            ):
                events[event] = events.get(event, 0) + 1
    assert events == {
        "accepted": 9, "finished": 9, "refused": 2, "claimed": 9, "first_token": 8, "ended": 9, "cancel_asked": 3
    }  # fmt: skip
    for text in ("please", "too long", "too many", "word 1,", *answers):
        assert text not in server.output, text


async def test_counters_go_on_when_processes_are_killed(server):
    """Never a step back, and every end is counted once; the gauges of the dead are gone."""
    async with server.chat() as chat:
        request_id = await ask(chat, "story 1 please", max_tokens=40)
        answer = Answer()
        while answer.seq < 3:
            answer.take(await chat.receive())
        before = scrape(server)
        server.kill("engine")
        await chat.read(request_id, answer)
    between = check_against_rows(server, engine_killed=True)
    assert between.sum("generation_tokens_total") >= before.sum("generation_tokens_total")
    assert between.by("engine_starts_total", "engine") == {"engine-1": 2}
    assert between.by("faults_total", "code")["engine_ended"] == 1
    await asyncio.sleep(0.6)  # what it has counted is in the broker then
    server.kill("web")
    async with contextlib.AsyncExitStack() as stack:
        chat = None
        while chat is None:
            with contextlib.suppress(OSError):
                chat = await stack.enter_async_context(server.chat())
        assert await finished(chat, await ask(chat, "story 2 please", max_tokens=10)) == "length"
        after = check_against_rows(server, engine_killed=True)
    assert after.sum("requests_accepted_total") == 2
    assert after.sum("web_processes") <= 2  # the dead one's word lasts three seconds
