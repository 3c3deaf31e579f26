"""What an engine counts is what its requests' logs say, each thing once."""

from dataclasses import replace

import pytest
import pytest_asyncio
from support import brokers

from inference.scheduling.ledger import Budget, IterationRecord, KVUse, Row
from inference.serving.broker import Broker
from inference.serving.logs import Claim, Outgoing
from inference.serving.messages import Delta, Finish
from inference.serving.tally import BUCKETS, SEPARATOR, SUM, Tally
from inference.serving.totals import EngineTotals
from inference.serving.totals_store import WEB, TotalsStore

RECORD = IterationRecord(
    1, 1, 0.0, 0.0, 1.0, 8.0, 1.0, 2.0, "continuous", (), (), 0, (), (), KVUse(1, 2, 3, 6), Budget(0, 512)
)  # fmt: skip


def out(request_id, seq, at=100.0, tokens=1, token="t"):
    return Outgoing(Claim(request_id, 1, token), Delta(request_id, seq, "x", [5] * tokens, 1, at))


def end(request_id, seq, prompt=3, token="t"):
    return Outgoing(Claim(request_id, 1, token), Finish(request_id, seq, "stop", [2], prompt_tokens=prompt))


def held(tally, name, *labels):
    """A counter's value, or a histogram's counts without its empty buckets."""
    increments = tally.take()
    start = SEPARATOR.join((name, *labels))
    values = increments.values if increments else {}
    if start in values:
        return values[start]
    found = {k.removeprefix(start + SEPARATOR): v for k, v in values.items() if k.startswith(start + SEPARATOR)}
    found.pop(SUM, None)
    return found


def bucket(name, value):
    return str(next(i for i, bound in enumerate((*BUCKETS[name], float("inf"))) if value <= bound))


def test_first_tokens_and_gaps_of_an_answer():
    totals = EngineTotals()
    totals.taken("a", 7, 99.5, deltas=0)
    totals.wrote([out("a", 1, at=100.0, tokens=2)])
    totals.wrote([out("a", 2, at=100.03), end("a", 3, prompt=7)])
    name = "time_to_first_token_seconds"
    assert held(totals, name) == {bucket(name, 0.5): 1}
    name = "inter_token_latency_seconds"
    assert held(totals, name) == {bucket(name, 0.03): 1}
    assert totals.is_due


def test_who_goes_on_from_another_engine_counts_no_prompt_and_no_first_token():
    totals = EngineTotals()
    totals.taken("a", 7, 99.5, deltas=4)
    totals.wrote([out("a", 5)])
    totals.wrote([end("a", 6, prompt=7)])
    assert totals.wordless == {}
    assert held(totals, "time_to_first_token_seconds") == {}


def test_what_is_written_under_a_lost_claim_does_not_count():
    totals = EngineTotals()
    totals.taken("a", 7, 99.5, deltas=0)
    totals.taken("b", 5, 99.5, deltas=0)
    totals.wrote([out("a", 1, token="lost"), out("b", 1)], {"lost"})
    name = "time_to_first_token_seconds"
    assert held(totals, name) == {bucket(name, 0.5): 1}
    assert totals.wordless == {}


def test_gaps_are_counted_of_whoever_had_a_word_before():
    """The same answers step after step; then one that paused, one that is new, and two words of one at once."""
    totals = EngineTotals()
    name = "inter_token_latency_seconds"
    for n in range(4):
        totals.wrote([out(r, n + 1, at=100.0 + n * 0.04) for r in "abc"])
    assert held(totals, name) == {bucket(name, 0.04): 9}
    totals.sent(totals.take())
    totals.wrote([out("a", 5, at=100.16), out("d", 1, at=100.16)])
    totals.wrote([out("b", 5, at=100.42), out("b", 6, at=100.42)])
    assert held(totals, name) == {bucket(name, 0.04): 1, bucket(name, 0.3): 1, bucket(name, 0.0): 1}


def test_an_answer_that_has_ended_is_forgotten():
    totals = EngineTotals()
    totals.taken("a", 3, 99.0, deltas=0)
    totals.wrote([out("a", 1), out("b", 1)])
    totals.wrote([out("a", 2), out("b", 2), end("a", 3), end("b", 3)])
    for known in (totals._unseen, totals.wordless, totals._came, totals._newest, totals._told):
        assert not known


def test_an_iteration():
    totals = EngineTotals()
    totals.taken("a", 50, 99.0, deltas=0)
    rows = (Row("a", 0, "prefill", 18, 50, 4), Row("b", 1, "decode", 1, 90, 6))
    totals.iteration(replace(RECORD, rows=rows, budget=Budget(19, 512), preempted=("c", "d")))
    assert held(totals, "num_preemptions_total") == 2
    assert held(totals, "prefix_cache_queries_total") == 50
    assert held(totals, "prefix_cache_hits_total") == 32
    assert held(totals, "iteration_tokens_total") == {bucket("iteration_tokens_total", 19): 1}
    assert held(totals, "iteration_seconds", "forward") == {bucket("iteration_seconds", 0.008): 1}
    totals.iteration(replace(RECORD, rows=rows))  # its second chunk is no second look
    assert held(totals, "prefix_cache_queries_total") == 50


def test_an_iteration_without_rows_is_none():
    totals = EngineTotals()
    totals.iteration(RECORD)
    assert totals.take() is None


def test_an_engine_that_has_done_nothing_shows_zeros():
    totals = EngineTotals()
    totals.started()
    assert held(totals, "engine_starts_total") == 1
    assert held(totals, "num_preemptions_total") == 0


# In the broker


@pytest.fixture(scope="module")
def valkey():
    with brokers.private() as server:
        yield server


@pytest_asyncio.fixture
async def broker(valkey):
    broker = Broker(valkey.url)
    await broker.redis.flushall()
    yield broker
    await broker.close()


async def test_counts_of_all_processes_add_up(broker):
    for process in ("one", "two"):
        store, tally = TotalsStore(broker, process), Tally()
        for _ in range(3):
            tally.add("errors_total", "not_found")
            await store.flush(tally)
    _, totals = (await store.totals())[WEB]
    assert totals == {SEPARATOR.join(("errors_total", "not_found")): 6}


async def test_nothing_is_added_twice(broker, monkeypatch):
    """The answer was lost, so the same increments are sent again; and late ones don't count beside newer ones."""
    store, tally = TotalsStore(broker, "one"), Tally()
    tally.add("deltas_sent_total", n=5)
    first = tally.take()
    with monkeypatch.context() as patch:
        patch.setattr(tally, "sent", lambda increments: None)
        await store.flush(tally)
    await store.flush(tally)
    tally.add("deltas_sent_total", n=1)
    await store.flush(tally)
    tally._taken = first
    await store.flush(tally)
    assert (await store.totals())[WEB][1] == {"deltas_sent_total": 6}


async def test_an_engine_that_comes_back_goes_on_counting(broker):
    """No counter goes backwards by a little, which Prometheus would take for a start from zero."""
    seen = []
    for process in ("engine@1", "engine@2"):
        store, totals = TotalsStore(broker, process), EngineTotals()
        totals.add("generation_tokens_total", n=10)
        await store.flush(totals, "engine-1", "toy")
        model, values = (await store.totals())["engine-1"]
        seen.append((model, values["generation_tokens_total"]))
    assert seen == [("toy", 10), ("toy", 20)]


async def test_an_engine_long_gone_is_not_shown_unless_it_lives(broker):
    store, totals = TotalsStore(broker, "engine@1"), EngineTotals()
    totals.add("generation_tokens_total", n=10)
    await store.flush(totals, "old", "toy")
    await broker.redis.zadd(broker.key("totals"), {"old": 1.0})
    assert "old" not in await store.totals()
    assert (await store.totals(["old"]))["old"][1] == {"generation_tokens_total": 10}


async def test_gauges_are_those_of_living_processes(broker):
    for process, count in (("one", 3), ("two", 4)):
        await TotalsStore(broker, process).put_gauges({"chat": count})
    store = TotalsStore(broker, "three")
    assert await store.gauges() == [{"chat": 3}, {"chat": 4}]
    await broker.redis.delete(broker.key("web", "one"))  # as when its time has passed
    assert await store.gauges() == [{"chat": 4}]
    assert await store.unclaimed() == 0
