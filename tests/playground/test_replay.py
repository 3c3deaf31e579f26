"""A request run again through broker and engine, and what is said of two answers."""

from __future__ import annotations

import asyncio
import contextlib
import uuid

import pytest
import pytest_asyncio
from django.contrib.auth.models import User
from support import brokers
from support.workers import WorkerProcess

from inference.config import SamplingParams
from inference.scheduling.request import RequestRefused
from playground import replay
from playground.gateway import Gateway
from playground.models import Conversation, InferenceRequest
from playground.replay import Comparison, around, first_difference

WORDS = " ".join(f"w{n}" for n in range(30))
WHOLE, CUT = (False, False), (True, False)


@pytest.fixture(scope="module")
def valkey():
    with brokers.private() as server:
        yield server


@pytest_asyncio.fixture
async def gateway(valkey):
    gateway = Gateway(valkey.url, queue_limit=50, resume_grace=0.1, conversation_grace=0.1)
    await gateway.client.broker.redis.flushall()
    yield gateway
    await gateway.close()


@pytest.fixture
def worker(valkey):
    worker = WorkerProcess(valkey.url, "w", 0.002)
    yield worker
    worker.close()


@pytest_asyncio.fixture
async def user():
    return await User.objects.acreate(username=f"u{uuid.uuid4().hex[:8]}")


async def until_final(request_id):
    while not (row := await InferenceRequest.objects.aget(pk=request_id)).is_final:
        await asyncio.sleep(0.02)
    return row


async def asked(gateway, user, **fields):
    row = await gateway.submit(user, prompt=WORDS, params=SamplingParams(max_tokens=100, seed=5), **fields)
    async with contextlib.aclosing(gateway.follow(user, str(row.pk))) as events:
        async for _ in events:
            pass
    return await until_final(row.pk)


@pytest.mark.django_db(transaction=True)
async def test_the_same_request_gives_the_same_tokens(gateway, user, worker):
    staff = await User.objects.acreate(username="staff")
    conversation = await Conversation.objects.acreate(owner=user)
    first = await asyncio.wait_for(asked(gateway, user, conversation=conversation), 20)
    again = await replay.start(gateway, first, staff)
    assert await replay.compare(gateway.client, first, again) is None
    with pytest.raises(RequestRefused, match="runs already"):
        await replay.start(gateway, first, staff)
    again = await asyncio.wait_for(until_final(again.pk), 20)
    assert (again.state, again.answer, again.seed) == ("completed", first.answer, first.seed)
    assert (again.owner_id, again.conversation_id, again.replay_of_id) == (staff.pk, None, first.pk)
    assert await replay.compare(gateway.client, first, again) == Comparison("same", "token", 30)
    kept = await InferenceRequest.objects.aget(pk=again.pk)
    await gateway.client.broker.redis.flushall()
    assert await replay.compare(gateway.client, first, kept) == Comparison("same", "token", 30)
    with pytest.raises(RequestRefused, match="a replay itself"):
        await replay.start(gateway, again, staff)


@pytest.mark.django_db(transaction=True)
async def test_without_a_log_the_texts_are_compared(gateway, user, worker):
    first = await asyncio.wait_for(asked(gateway, user), 20)
    again = await asyncio.wait_for(until_final((await replay.start(gateway, first, user)).pk), 20)
    await gateway.client.broker.redis.flushall()
    found = await replay.compare(gateway.client, first, again)
    assert found == Comparison("same", "character", len(first.answer))


@pytest.mark.django_db(transaction=True)
async def test_its_owner_can_read_it_nowhere_else(gateway, user, worker):
    """Who may replay need not have the right to read what others asked."""
    first = await asyncio.wait_for(asked(gateway, user), 20)
    again = await replay.start(gateway, first, await User.objects.acreate(username="staff"))
    owner = await User.objects.aget(pk=again.owner_id)
    with pytest.raises(RequestRefused) as refusal:
        async for _ in gateway.follow(owner, str(again.pk)):
            pass
    assert refusal.value.code == "not_found"
    assert await gateway.cancel(owner, str(again.pk)) is False


@pytest.mark.django_db(transaction=True)
async def test_nobody_need_follow_it(gateway, user):
    """No engine yet, and graces of a tenth of a second: a request of a socket would be given up."""
    row = await InferenceRequest.objects.acreate(
        owner=user, prompt=WORDS, params={"max_tokens": 100}, seed=5, state="completed", finish_reason="stop"
    )
    again = await replay.start(gateway, row, user)
    assert gateway._followers._timers == {}
    await gateway.cancel_any(str(again.pk))
    assert (await asyncio.wait_for(until_final(again.pk), 20)).state == "cancelled"


@pytest.mark.django_db(transaction=True)
async def test_it_goes_with_what_it_repeats(user):
    """A user who deletes a conversation deletes the copies of it, too."""
    conversation = await Conversation.objects.acreate(owner=user)
    row = await InferenceRequest.objects.acreate(owner=user, prompt="x", seed=1, conversation=conversation)
    await InferenceRequest.objects.acreate(owner=user, prompt="x", seed=1, replay_of=row)
    await conversation.adelete()
    assert await InferenceRequest.objects.acount() == 0


@pytest.mark.parametrize(
    ("first", "second", "cut", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], WHOLE, ("same", 3)),
        ([], [], WHOLE, ("same", 0)),
        ([1, 2, 3], [1, 9, 3], WHOLE, ("differs", 2)),
        ([1, 2], [1, 2, 3], WHOLE, ("differs", 3)),
        ([1, 2], [1, 2, 3], CUT, ("same_so_far", 2)),
        ([1, 2, 3], [1, 2], CUT, ("differs", 3)),  # the first one was cut, yet has more
        ([1, 2, 3], [1, 2], (False, True), ("same_so_far", 2)),
        ([1, 9], [1, 2, 3], CUT, ("differs", 2)),
        ([1, 2], [1, 2], CUT, ("same_so_far", 2)),
        ([9], [], WHOLE, ("differs", 1)),
    ],
)
def test_first_difference(first, second, cut, expected):
    found = first_difference(first, second, "token", cut)
    assert (found.verdict, found.at) == expected


def test_words_around_a_difference():
    assert around("abcdef", "abcxyz") == ("abc", "def", "xyz")
    before, one, other = around("a" * 100 + "b" * 100, "a" * 100)
    assert (before, one, other) == ("a" * 40, "b" * 60, "")
