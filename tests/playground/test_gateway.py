"""Accepted means durable, one final state each, and nobody's answer goes to anybody else."""

import asyncio
import contextlib
import uuid
from datetime import timedelta

import pytest
import pytest_asyncio
from channels.db import database_sync_to_async
from django.contrib.auth.models import User
from support import brokers
from support.workers import WorkerProcess

from inference.config import SamplingParams
from inference.scheduling.request import RequestRefused
from inference.serving.messages import Delta, Finish
from playground.gateway import Gateway
from playground.models import Conversation, InferenceRequest

pytestmark = pytest.mark.django_db(transaction=True)
WORDS = [f"w{n}" for n in range(40)]
PROMPT = " ".join(WORDS)
WHOLE = "".join(word + " " for word in WORDS)
PARAMS = SamplingParams(max_tokens=100)
GRACE = 0.3


@pytest.fixture(scope="module")
def valkey():
    with brokers.private() as server:
        yield server


@pytest_asyncio.fixture
async def gateway(valkey):
    gateway = Gateway(valkey.url, queue_limit=50, resume_grace=GRACE, conversation_grace=60)
    await gateway.client.broker.redis.flushall()
    yield gateway
    await gateway.close()


@pytest.fixture
def start_worker(valkey):
    workers = []

    def start(step_seconds=0.002, name="w"):
        workers.append(WorkerProcess(valkey.url, name, step_seconds))
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()


@pytest_asyncio.fixture
async def user():
    return await User.objects.acreate(username=f"u{uuid.uuid4().hex[:8]}")


async def read(gateway, user, request_id, after_seq=0, stop_after=None):
    events = []
    async with contextlib.aclosing(gateway.follow(user, request_id, after_seq)) as following:
        async for event in following:
            events.append(event)
            if stop_after is not None and len(events) >= stop_after:
                break
    return events


def text(events):
    return "".join(event.text for event in events if isinstance(event, Delta))


async def row_of(request_id):
    return await InferenceRequest.objects.aget(pk=request_id)


async def until_final(request_id):
    while not (row := await row_of(request_id)).is_final:
        await asyncio.sleep(0.02)
    return row


async def test_accepted_followed_and_final(gateway, user, start_worker):
    start_worker()
    row = await gateway.submit(user, prompt=PROMPT, params=PARAMS, ref="mine")
    assert (row.state, row.position) == ("accepted", 0)
    events = await asyncio.wait_for(read(gateway, user, str(row.pk)), 20)
    assert text(events) == WHOLE
    assert isinstance(events[-1], Finish)
    row = await row_of(row.pk)  # by the time of the finish it is written
    assert (row.state, row.finish_reason, row.answer, row.ref) == ("completed", "stop", WHOLE, "mine")
    assert (row.prompt_tokens, row.completion_tokens, row.attempts, row.engine) == (40, 40, 1, "w")
    assert row.finished_at >= row.first_token_at >= row.created_at
    assert 0 <= row.seed < 1 << 63


async def test_a_running_request_says_so(gateway, user, start_worker):
    start_worker(step_seconds=0.02)
    row = await gateway.submit(user, prompt=PROMPT, params=PARAMS)
    async with contextlib.aclosing(gateway.follow(user, str(row.pk))) as events:
        await anext(events)
        while (await row_of(row.pk)).state != "running":
            await asyncio.sleep(0.01)


async def test_accepted_without_a_broker_is_done_once_there_is_one(gateway, user, start_worker, valkey):
    await gateway.ensure_started()
    valkey.kill()
    row = await gateway.submit(user, prompt=PROMPT, params=PARAMS)
    following = asyncio.create_task(read(gateway, user, str(row.pk)))
    valkey.start()
    start_worker()
    assert text(await asyncio.wait_for(following, 20)) == WHOLE


async def test_a_broker_killed_in_mid_stream_loses_nothing(gateway, user, start_worker, valkey):
    start_worker(step_seconds=0.02)
    pks = [(await gateway.submit(user, prompt=PROMPT, params=PARAMS)).pk for _ in range(4)]
    following = [asyncio.create_task(read(gateway, user, str(pk))) for pk in pks]
    await read(gateway, user, str(pks[0]), stop_after=5)
    valkey.kill()
    valkey.start()
    for pk, events in zip(pks, await asyncio.wait_for(asyncio.gather(*following), 30), strict=True):
        assert [event.seq for event in events] == list(range(1, 42))
        assert text(events) == WHOLE
        assert (await row_of(pk)).answer == WHOLE


async def test_rows_of_an_earlier_life_are_put_back_and_finished(gateway, user, start_worker):
    """A web process died after the commit, before the broker heard of it."""
    row = await InferenceRequest.objects.acreate(
        owner=user, prompt=PROMPT, params={"max_tokens": 100}, seed=7, state="accepted"
    )
    start_worker()
    await gateway.ensure_started()
    row = await asyncio.wait_for(until_final(row.pk), 20)
    assert (row.state, row.answer) == ("completed", WHOLE)


async def test_a_finish_nobody_saw_is_written_by_the_sweeper(gateway, user, start_worker, valkey):
    start_worker()
    row = await gateway.submit(user, prompt=PROMPT, params=PARAMS)
    await gateway.close()  # this web process is gone before the answer is there
    later = Gateway(valkey.url, queue_limit=50, resume_grace=GRACE, conversation_grace=60)
    while (await later.client.log(str(row.pk))).finish is None:
        await asyncio.sleep(0.02)
    await later.ensure_started()
    assert (await asyncio.wait_for(until_final(row.pk), 20)).answer == WHOLE
    await later.close()


async def test_cancel_of_ones_own_twice_and_of_anothers(gateway, user, start_worker):
    start_worker(step_seconds=0.02)
    stranger = await User.objects.acreate(username="stranger")
    row = await gateway.submit(user, prompt=PROMPT, params=PARAMS)
    following = asyncio.create_task(read(gateway, user, str(row.pk)))
    await read(gateway, user, str(row.pk), stop_after=3)
    assert await gateway.cancel(stranger, str(row.pk)) is False
    assert await gateway.cancel(user, str(uuid.uuid4())) is False
    assert await gateway.cancel(user, "no id at all") is False
    assert await gateway.cancel(user, str(row.pk)) is True
    assert await gateway.cancel(user, str(row.pk)) is True
    events = await asyncio.wait_for(following, 20)
    assert events[-1].finish_reason == "cancelled"
    row = await row_of(row.pk)
    assert (row.state, row.answer) == ("cancelled", text(events))
    assert await gateway.cancel(user, str(row.pk)) is True
    assert (await row_of(row.pk)).state == "cancelled"


async def test_cancel_is_remembered_when_the_broker_loses_it(gateway, user, start_worker):
    row = await gateway.submit(user, prompt=PROMPT, params=PARAMS)
    await gateway.client.broker.redis.flushall()
    assert await gateway.cancel(user, str(row.pk)) is True
    row = await asyncio.wait_for(until_final(row.pk), 20)
    assert (row.state, row.answer) == ("cancelled", "")


async def test_a_request_whose_reader_left_is_cancelled_after_a_grace(gateway, user, start_worker):
    start_worker(step_seconds=0.05)
    row = await gateway.submit(user, prompt=PROMPT, params=PARAMS)
    await read(gateway, user, str(row.pk), stop_after=2)
    row = await asyncio.wait_for(until_final(row.pk), 20)
    assert row.state == "cancelled"


async def test_a_reader_that_comes_back_in_time_goes_on(gateway, user, start_worker):
    start_worker(step_seconds=0.02)
    row = await gateway.submit(user, prompt=PROMPT, params=PARAMS)
    first = await read(gateway, user, str(row.pk), stop_after=5)
    rest = await asyncio.wait_for(read(gateway, user, str(row.pk), after_seq=5), 20)
    assert text(first + rest) == WHOLE
    assert [event.seq for event in first + rest] == list(range(1, 42))


async def test_in_a_conversation_the_answer_goes_on_without_a_reader(gateway, user, start_worker):
    start_worker(step_seconds=0.02)
    conversation = await Conversation.objects.acreate(owner=user)
    row = await gateway.submit(user, prompt=PROMPT, params=PARAMS, conversation=conversation)
    await read(gateway, user, str(row.pk), stop_after=2)
    assert (await asyncio.wait_for(until_final(row.pk), 20)).state == "completed"


async def test_another_web_process_that_follows_keeps_it_alive(gateway, user, start_worker, valkey):
    start_worker(step_seconds=0.02)
    other = Gateway(valkey.url, queue_limit=50, resume_grace=GRACE, conversation_grace=60)
    row = await gateway.submit(user, prompt=PROMPT, params=PARAMS)
    there = asyncio.create_task(read(other, user, str(row.pk)))
    await read(gateway, user, str(row.pk), stop_after=2)
    assert text(await asyncio.wait_for(there, 20)) == WHOLE
    await other.close()


async def test_a_full_queue_refuses_with_true_numbers(gateway, user):
    for _ in range(50):
        await gateway.submit(user, prompt=PROMPT, params=PARAMS)
    with pytest.raises(RequestRefused, match="50 requests wait or run, and 50 are allowed; try again in") as refusal:
        await gateway.submit(user, prompt=PROMPT, params=PARAMS)
    assert refusal.value.code == "queue_full"
    assert await InferenceRequest.objects.acount() == 50


async def test_a_family_is_accepted_whole_or_not_at_all(gateway, user):
    for _ in range(47):
        await gateway.submit(user, prompt=PROMPT, params=PARAMS)
    with pytest.raises(RequestRefused, match="47 requests wait or run, and 50 are allowed; these would be 4 more"):
        await gateway.submit_all(user, prompt=PROMPT, params=SamplingParams(n=4))
    assert await InferenceRequest.objects.acount() == 47
    family = await gateway.submit_all(user, prompt=PROMPT, params=SamplingParams(n=3, seed=5))
    assert [row.position for row in family] == [47, 48, 49]
    assert [row.seed for row in family] == [one.seed for one in SamplingParams(n=3, seed=5).siblings()]
    assert [row.params["n"] for row in family] == [1, 1, 1]


async def test_a_family_without_a_seed_derives_from_the_one_that_is_chosen(gateway, user):
    family = await gateway.submit_all(user, prompt=PROMPT, params=SamplingParams(n=3))
    assert [row.seed for row in family] == [one.seed for one in SamplingParams(n=3, seed=family[0].seed).siblings()]


async def test_a_request_that_is_too_old_expires(gateway, user, start_worker):
    """Its time counts from when it was accepted, not from when an engine came to it."""
    row = await InferenceRequest.objects.acreate(owner=user, prompt=PROMPT, params={"max_tokens": 100}, seed=7)
    await InferenceRequest.objects.filter(pk=row.pk).aupdate(created_at=row.created_at - timedelta(hours=2))
    start_worker()
    await gateway.ensure_started()
    row = await asyncio.wait_for(until_final(row.pk), 20)
    assert (row.state, row.finish_reason, row.error_message) == ("expired", "expired", "it took too long")
    [finish] = await read(gateway, user, str(row.pk))
    assert finish.finish_reason == "expired"


async def test_position_counts_those_before(gateway, user):
    rows = [await gateway.submit(user, prompt=PROMPT, params=PARAMS) for _ in range(3)]
    assert [row.position for row in rows] == [0, 1, 2]


async def test_an_answer_whose_log_has_expired_comes_from_its_row(gateway, user, start_worker):
    start_worker()
    row = await gateway.submit(user, prompt=PROMPT, params=PARAMS)
    await asyncio.wait_for(read(gateway, user, str(row.pk)), 20)
    await gateway.client.broker.redis.flushall()
    events = await read(gateway, user, str(row.pk))
    assert (text(events), events[-1].finish_reason, events[-1].completion_tokens) == (WHOLE, "stop", 40)
    with pytest.raises(RequestRefused, match="not kept any more"):
        await read(gateway, user, str(row.pk), after_seq=5)


async def test_nobody_follows_anothers_request(gateway, user, start_worker):
    start_worker()
    stranger = await User.objects.acreate(username="stranger")
    row = await gateway.submit(user, prompt=PROMPT, params=PARAMS)
    for who, request_id in ((stranger, str(row.pk)), (user, str(uuid.uuid4())), (user, "x")):
        with pytest.raises(RequestRefused) as refusal:
            await read(gateway, who, request_id)
        assert refusal.value.code == "not_found"


async def test_a_final_state_is_written_once(gateway, user, start_worker):
    """Two web processes see the same finish; a stale one comes later with another."""
    from playground import rows

    start_worker()
    row = await gateway.submit(user, prompt=PROMPT, params=PARAMS)
    await asyncio.wait_for(read(gateway, user, str(row.pk)), 20)
    stale = rows.Outcome(Finish(str(row.pk), 9, "cancelled"), "something else", 1)
    await database_sync_to_async(rows.apply)([str(row.pk)], [stale])
    row = await row_of(row.pk)
    assert (row.state, row.answer) == ("completed", WHOLE)


async def test_errors_reach_the_row_and_the_reader(gateway, user, start_worker):
    start_worker()
    row = await gateway.submit(user, prompt="w " * 101, params=PARAMS)
    [finish] = await asyncio.wait_for(read(gateway, user, str(row.pk)), 20)
    row = await row_of(row.pk)
    assert (finish.error_code, row.error_code, row.state) == ("prompt_too_long", "prompt_too_long", "failed")
    assert row.error_message == finish.error_message == "the prompt has 101 words; at most 100 fit"
