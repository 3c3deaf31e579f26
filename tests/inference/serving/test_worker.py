"""The engine's process, with a fake engine inside, seen through the broker: killed, frozen, stopped, cut off."""

import asyncio
import signal
import time
from dataclasses import replace

import orjson

from inference.serving.client import EngineClient
from inference.serving.messages import Delta, Finish, Submission

WORDS = [f"w{n}" for n in range(60)]


def submission(request_id, words=WORDS, **params):
    return Submission(request_id, {"max_tokens": 100, "seed": 1, **params}, prompt=" ".join(words))


async def answer(client, request_id, after_seq=0):
    """All events of a request; checks on the way that seq has no gap and no repeat."""
    events = []
    async for event in client.follow(request_id, after_seq):
        assert event.seq == (events[-1].seq if events else after_seq) + 1
        events.append(event)
    assert isinstance(events[-1], Finish)
    return events


def text(events):
    return "".join(event.text for event in events if isinstance(event, Delta))


WHOLE = "".join(word + " " for word in WORDS)


async def until(condition, *args):
    """Wait for something that comes by itself; the test's timeout is the bound."""
    while not (value := await condition(*args)):
        await asyncio.sleep(0.02)
    return value


async def bury(broker, worker):
    """Wait for a worker's end and take its heartbeat away, as a supervisor does."""
    status = await asyncio.to_thread(worker.wait, 20)
    for consumer in await broker.statuses():
        await broker.stop_beating(consumer)
    return status


async def has_deltas(client, request_id, count):
    return len((await client.log(request_id)).deltas) >= count


async def test_an_answer_is_whole_and_in_order(client, start_worker):
    start_worker()
    await client.submit(submission("r1"))
    events = await asyncio.wait_for(answer(client, "r1"), 20)
    assert text(events) == WHOLE
    finish = events[-1]
    assert (finish.finish_reason, finish.completion_tokens, finish.engine) == ("stop", 60, "w")
    again = await answer(client, "r1", after_seq=57)
    assert [e.seq for e in again] == [58, 59, 60, 61]


async def test_follow_before_there_is_a_request(client, start_worker):
    following = asyncio.create_task(answer(client, "later"))
    start_worker()
    await asyncio.sleep(0)
    await client.submit(submission("later"))
    assert text(await asyncio.wait_for(following, 20)) == WHOLE


async def test_a_killed_worker_loses_and_repeats_nothing(client, start_worker, broker):
    first = start_worker("a", step_seconds=0.01)
    ids = [f"r{n}" for n in range(8)]
    for request_id in ids:
        await client.submit(submission(request_id))
    following = [asyncio.create_task(answer(client, request_id)) for request_id in ids]
    await until(has_deltas, client, "r7", 10)
    first.signal(signal.SIGKILL)
    await bury(broker, first)
    start_worker("b", step_seconds=0.001)
    for events in await asyncio.wait_for(asyncio.gather(*following), 20):
        assert text(events) == WHOLE
        assert events[-1].engine == "b"
    assert (await client.log("r0")).claims == 2


async def test_a_frozen_worker_that_thaws_cannot_write(client, start_worker, broker):
    first = start_worker("a", step_seconds=0.01)
    await client.submit(submission("r1"))
    following = asyncio.create_task(answer(client, "r1"))
    await until(has_deltas, client, "r1", 5)
    first.signal(signal.SIGSTOP)
    start_worker("b", step_seconds=0.02)  # waits until the first one's heartbeat has run out
    await until(lambda: taken_by(client, "r1", 2))
    first.signal(signal.SIGCONT)
    events = await asyncio.wait_for(following, 20)
    assert text(events) == WHOLE
    assert events[-1].engine == "b"
    log = await client.log("r1")
    assert [d.seq for d in log.deltas] == list(range(1, 61))


async def taken_by(client, request_id, claims):
    return (await client.log(request_id)).claims >= claims


async def test_sigterm_gives_requests_back_at_once(client, start_worker):
    first = start_worker("a", step_seconds=0.01)
    await client.submit(submission("r1"))
    following = asyncio.create_task(answer(client, "r1"))
    await until(has_deltas, client, "r1", 5)
    first.signal(signal.SIGTERM)
    assert await asyncio.to_thread(first.wait) == 0
    assert await client.engines() == []
    start_worker("b")
    assert text(await asyncio.wait_for(following, 20)) == WHOLE


async def test_cancel_while_it_runs_and_before_anybody_claims_it(client, start_worker):
    await client.submit(submission("queued"))
    assert await client.cancel("queued") == "finished"
    [finish] = await answer(client, "queued")
    assert finish.finish_reason == "cancelled"
    start_worker(step_seconds=0.01)
    await client.submit(submission("running"))
    await until(has_deltas, client, "running", 3)
    assert await client.cancel("running") == "asked"
    events = await asyncio.wait_for(answer(client, "running"), 20)
    assert events[-1].finish_reason == "cancelled"
    assert len(events) < 60
    assert await client.cancel("running") == "finished"


async def test_a_cancel_outlives_the_worker_that_should_have_heard_it(client, start_worker, broker):
    first = start_worker("a", step_seconds=0.01)
    await client.submit(submission("r1"))
    await until(has_deltas, client, "r1", 3)
    first.signal(signal.SIGSTOP)
    assert await client.cancel("r1") == "asked"
    first.signal(signal.SIGKILL)
    await bury(broker, first)
    start_worker("b")
    events = await asyncio.wait_for(answer(client, "r1"), 20)
    assert events[-1].finish_reason == "cancelled"


async def test_what_can_never_run_is_refused_with_its_code(client, start_worker):
    start_worker()
    await client.submit(submission("long", ["w"] * 101))
    await client.submit(submission("odd", temperature=-1))
    await client.submit(Submission("empty", {"seed": 1}))
    codes = {}
    for request_id in ("long", "odd", "empty"):
        [finish] = await asyncio.wait_for(answer(client, request_id), 20)
        assert finish.finish_reason == "error"
        codes[request_id] = finish.error_code
    assert codes == {"long": "prompt_too_long", "odd": "bad_params", "empty": "bad_params"}


async def test_after_three_attempts_a_request_fails(client, start_worker, broker):
    await client.submit(submission("poison", ["a", "b", "boom", "c"]))
    for name in ("a", "b", "c"):
        assert await bury(broker, start_worker(name, crash_on="boom")) == 1
    start_worker("d", crash_on="boom")
    events = await asyncio.wait_for(answer(client, "poison"), 20)
    assert text(events) == "a b "
    assert (events[-1].error_code, events[-1].seq) == ("engine_unavailable", 3)


async def test_the_broker_loses_everything_under_a_running_worker(client, start_worker, broker):
    start_worker(step_seconds=0.01)
    await client.submit(submission("r1"))
    following = asyncio.create_task(answer(client, "r1"))
    await until(has_deltas, client, "r1", 5)
    await broker.redis.flushall()
    assert not await client.exists("r1")
    await client.submit(submission("r1"))  # as the sweeper does
    assert text(await asyncio.wait_for(following, 20)) == WHOLE
    assert [d.seq for d in (await client.log("r1")).deltas] == list(range(1, 61))


async def test_a_follower_mends_gaps_of_the_feed(client, start_worker, broker):
    """Every second feed entry is kept from the follower: what it lacks, it reads in the log."""
    deliver, count = client._deliver, 0

    def lossy(event):
        nonlocal count
        count += 1
        if count % 2:
            deliver(event)

    client._deliver = lossy
    start_worker(step_seconds=0.002)
    await client.submit(submission("r1"))
    assert text(await asyncio.wait_for(answer(client, "r1"), 30)) == WHOLE


async def test_logprobs_are_in_the_log_and_come_again(client, start_worker):
    start_worker()
    await client.submit(submission("r1", ["a", "b"], logprobs=1))
    events = await asyncio.wait_for(answer(client, "r1"), 20)
    first, second, finish = events
    zero, never = {"token_id": 0, "token": "a", "logprob": 0.0}, -9999.0
    assert first.logprobs == [{**zero, "top": [zero, {**zero, "logprob": never}]}]
    one = {"token_id": 1, "token": "b", "logprob": -1.0}
    assert second.logprobs == [{**one, "top": [zero, {**one, "logprob": never}]}]
    assert finish.logprobs == []
    assert await answer(client, "r1") == events
    await client.submit(submission("r2", ["a", "b"]))
    assert [event.logprobs for event in await answer(client, "r2")] == [None, None, None]


async def test_the_time_of_a_request_counts_from_when_it_was_accepted(client, start_worker):
    start_worker()
    for name, seconds in (("old", -7200), ("new", -1), ("of a clock that goes before", 3600)):
        await client.submit(replace(submission(name), submitted_at=time.time() + seconds))
    reasons = [(await answer(client, name))[-1].finish_reason for name in ("old", "new", "of a clock that goes before")]
    assert reasons == ["expired", "stop", "stop"]


async def test_status_tells_what_the_engine_does(client, start_worker):
    start_worker()
    [status] = await until(ready, client)
    assert (status.name, status.model, status.busy) == ("w", "fake", False)
    assert "model_cache" not in status.settings
    assert status.settings["policy"] == "continuous"


async def ready(client):
    engines = await client.engines()
    return engines if engines and engines[0].state == "ready" else None


async def test_a_model_that_cannot_be_loaded_is_told(client, start_worker):
    worker = start_worker("broken")
    assert await asyncio.to_thread(worker.wait) == 3
    [status] = await client.engines()
    assert (status.state, status.detail) == ("failed", "the model has no weights")


async def test_iterations_are_watched_live(client, start_worker):
    start_worker(step_seconds=0.002)
    await until(ready, client)
    numbers = []

    feed = client.ledger_feed()
    assert await feed.read(["w"]) == {}
    await client.submit(submission("r1"))
    finished = False
    while not finished:
        for record in (await feed.read(["w"])).get("w", []):
            numbers.append(record.name.n)
            finished = finished or bool(orjson.loads(record.data)["finished"])
        await asyncio.sleep(0.02)
    assert numbers == sorted(numbers)
    assert len(numbers) > 1
    newest = await client.newest_iterations("w", 3)
    assert [record.name.n for record in newest] == [58, 59, 60]


async def test_a_frozen_broker_is_survived(client, valkey, start_worker):
    start_worker(step_seconds=0.01)
    await client.submit(submission("r1"))
    following = asyncio.create_task(answer(client, "r1"))
    await until(has_deltas, client, "r1", 5)
    valkey.pause()
    await asyncio.sleep(1.0)
    valkey.go_on()
    assert text(await asyncio.wait_for(following, 20)) == WHOLE


async def test_two_workers_share_and_never_double(client, start_worker, valkey):
    start_worker("a", step_seconds=0.002)
    start_worker("b", step_seconds=0.002)
    ids = [f"r{n}" for n in range(40)]
    other = EngineClient(valkey.url)  # as another web process
    await other.start()
    for request_id in ids:
        await client.submit(submission(request_id))
    answers = await asyncio.wait_for(asyncio.gather(*(answer(other, request_id) for request_id in ids)), 30)
    assert all(text(events) == WHOLE for events in answers)
    await other.close()
