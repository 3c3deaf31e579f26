"""Receipts and places in line as they come out of an engine's process: a real engine, a toy model, a real broker."""

import asyncio
import signal
import time
from dataclasses import replace
from itertools import pairwise

import pytest

from inference.scheduling.receipt import PARTS
from inference.serving.messages import Delta, Finish, Queued, Submission


def submission(name, tokens=40, **params):
    values = {"max_tokens": tokens, "ignore_eos": True, "seed": 1, **params}
    return Submission(name, values, prompt="abcabc", user="u", submitted_at=time.time())


async def all_of(client, request_id):
    return [event async for event in client.follow(request_id)]


async def until(condition, *args):
    """Wait for something that comes by itself; the test's timeout is the bound."""
    while not (value := await condition(*args)):
        await asyncio.sleep(0.02)
    return value


async def has_deltas(client, request_id, count):
    return len((await client.log(request_id)).deltas) >= count


async def engine_costs(client):
    return next((status.costs for status in await client.engines() if status.costs.get("observed", 0) > 30), None)


def check(submission, finish):
    """The parts add up, to what went by from its submission to its end."""
    receipt = finish.receipt
    assert min(receipt[part] for part in PARTS) >= 0
    assert abs(sum(receipt[part] for part in PARTS) - receipt["total"]) < 0.01
    passed = 1000 * (finish.finished_at - submission.submitted_at)
    assert abs(receipt["total"] - passed) <= 0.01 * passed + 5.0
    assert receipt["details"]["engine"] == finish.engine
    assert receipt["details"]["epoch"] > 0


async def test_a_request_whose_worker_died_was_stalled(client, start_worker, broker):
    first = start_worker("toy-a", step_seconds=0.02)
    sent = submission("r1")
    await client.submit(sent)
    following = asyncio.create_task(all_of(client, "r1"))
    await until(has_deltas, client, "r1", 6)
    first.signal(signal.SIGKILL)
    await asyncio.to_thread(first.wait, 20)
    for consumer in await broker.statuses():
        await broker.stop_beating(consumer)
    start_worker("toy-b", step_seconds=0.01)
    finish = (await asyncio.wait_for(following, 30))[-1]
    assert isinstance(finish, Finish)
    assert finish.engine == "toy-b"
    check(sent, finish)
    log = await client.log("r1")
    gap = max(b.created_at - a.created_at for a, b in pairwise(log.deltas))
    assert 0 < finish.receipt["stalled"] <= 1000 * gap
    assert finish.receipt["details"]["ttft"] <= 1000 * (log.deltas[0].created_at - sent.submitted_at) + 1


async def test_what_the_broker_lost_was_stalled(client, start_worker, broker):
    """Two run and one waits when all is lost; they are put back as the web side does it, which knows of no begin."""
    start_worker("toy", step_seconds=0.01)
    sent = [submission(name, tokens=120) for name in ("r1", "r2", "waits")]
    for one in sent:
        await client.submit(one)
    following = [asyncio.create_task(all_of(client, one.request_id)) for one in sent]
    for name in ("r1", "r2"):
        await until(has_deltas, client, name, 20)
    firsts = {name: (await client.log(name)).deltas[0] for name in ("r1", "r2")}
    await broker.redis.flushall()
    await asyncio.sleep(0.3)
    again = [replace(one, put_back_at=time.time()) for one in sent]
    for one in again:
        await client.submit(one)
    for one, events in zip(again, await asyncio.wait_for(asyncio.gather(*following), 60), strict=True):
        receipt, details = events[-1].receipt, events[-1].receipt["details"]
        check(one, events[-1])
        before = 1000 * (one.put_back_at - one.submitted_at)
        if (first := firsts.get(one.request_id)) is None:
            assert receipt["stalled"] == 0
            assert abs(details["queue"]["earlier"] - before) < 1
            continue
        assert receipt["stalled"] >= 1000 * (one.put_back_at - first.started_at) - 1
        assert details["queue"].get("earlier", 0) <= 1000 * (first.started_at - one.submitted_at) + 1
        assert abs(details["ttft"] - 1000 * (first.created_at - one.submitted_at)) < 50
        assert [event.seq for event in events] == list(range(1, len(events) + 1))


async def test_who_waits_is_told_its_place_until_it_runs(client, start_worker):
    start_worker("toy", step_seconds=0.01)
    sent = [submission(f"r{n}", tokens=90) for n in range(8)]
    following = [asyncio.create_task(all_of(client, one.request_id)) for one in sent]
    for one in sent:
        await client.submit(one)
    answers = await asyncio.wait_for(asyncio.gather(*following), 60)
    for one, events in zip(sent, answers, strict=True):
        kinds = [type(event) for event in events]
        first = kinds.index(Delta)
        assert Queued not in kinds[first:]
        check(one, events[-1])
        after_first = 1000 * (events[-1].finished_at - events[first].created_at)
        receipt = events[-1].receipt
        assert receipt["details"]["ttft"] + after_first == pytest.approx(receipt["total"], rel=0.01, abs=10.0)
        positions = [event.position for event in events[:first]]
        assert positions == sorted(positions, reverse=True)
        for before, after in pairwise(events[:first]):
            assert before != after
    last = [event for event in answers[-1] if isinstance(event, Queued)]
    assert last[0].position == 5
    assert last[0].reason in ("behind", "no_seat")
    assert last[-1].position <= 1
    assert any(event.eta_ms is not None for event in last)
    finish = answers[-1][-1]
    # The first in line may find its seat in the very iteration in which it comes to the front.
    assert "behind" in finish.receipt["details"]["queue"]


async def test_who_comes_later_hears_of_its_place_at_once(client, start_worker):
    start_worker("toy", step_seconds=0.02)
    for n in range(3):
        await client.submit(submission(f"r{n}", tokens=200))
    told = asyncio.create_task(anext(client.follow("r2")))
    assert isinstance(await asyncio.wait_for(told, 20), Queued)
    again = await asyncio.wait_for(anext(client.follow("r2")), 20)
    assert (again.request_id, again.position) == ("r2", 0)


async def test_a_status_has_the_prices(client, start_worker):
    start_worker("toy", step_seconds=0.005)
    await client.submit(submission("r1", tokens=50))
    costs = await asyncio.wait_for(until(engine_costs, client), 30)
    assert set(costs) == {"fixed", "token", "read", "sample", "error", "observed"}
    assert min(costs.values()) >= 0


async def test_a_request_that_no_engine_runs_has_waited(client, start_worker):
    start_worker("toy")
    sent = submission("r1", tokens=100_000)
    await client.submit(sent)
    [finish] = await asyncio.wait_for(all_of(client, "r1"), 30)
    assert finish.error_code
    check(sent, finish)
    assert finish.receipt["queue"] == finish.receipt["total"] == finish.receipt["details"]["queue"]["accept"]
