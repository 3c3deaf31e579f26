"""Quotas of accounts and keys, over both doors, and how many requests may wait."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio
from channels.db import database_sync_to_async
from django.contrib.auth.models import User
from support import brokers
from support.workers import WorkerProcess

from inference.config import RequestRefused, SamplingParams
from inference.serving.messages import Finish
from playground import rows
from playground.access import limits
from playground.access.callers import Caller
from playground.access.keys import create_key
from playground.access.limits import Limit, Limiter, Quotas, in_words
from playground.gateway import Gateway
from playground.models import AccountQuota, ApiKey, InferenceRequest
from playground.pace import UNKNOWN, Pace

pytestmark = pytest.mark.django_db(transaction=True)
PARAMS = SamplingParams(max_tokens=100)


@pytest.fixture(scope="module")
def valkey() -> Iterator[brokers.PrivateBroker]:
    with brokers.private() as server:
        yield server


@pytest.fixture(autouse=True)
def look_up_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REMEMBERED", 0.0)


@pytest_asyncio.fixture(params=["broker", "memory"])
async def limiter_of(request: Any, valkey: brokers.PrivateBroker) -> AsyncIterator[Callable[..., Limiter]]:
    """Makes a limiter with these quotas of accounts; over the broker, and without one."""
    made: list[Limiter] = []

    def make(**quotas: int) -> Limiter:
        made.append(Limiter(valkey.url if request.param == "broker" else "", Quotas(**quotas)))
        return made[-1]

    yield make
    for limiter in made:
        await limiter.close()


async def new_user(**fields: Any) -> User:
    return await User.objects.acreate(username=f"u{uuid.uuid4().hex[:8]}", **fields)


async def new_key(owner: User, **quota: int) -> ApiKey:
    return (await database_sync_to_async(create_key)(owner, "script", **quota))[0]


async def usage(limiter: Limiter, user: User, key: ApiKey | None = None) -> list[tuple[Limit, int]]:
    account, of_key = await database_sync_to_async(limiter.look_up)(user.pk, key.pk if key else None)
    return await limiter.usage((*account, *of_key))


async def refusal_of(limiter: Limiter, caller: Caller, requests: int = 1) -> RequestRefused:
    with pytest.raises(RequestRefused) as refused:
        await limiter.take(caller, requests)
    assert refused.value.code == "rate_limited"
    return refused.value


async def test_without_quotas_there_is_no_limit(limiter_of: Callable[..., Limiter]) -> None:
    limiter, caller = limiter_of(), Caller(await new_user())
    for _ in range(50):
        await limiter.take(caller)
    assert await usage(limiter, caller.user) == []


async def test_an_account_s_requests_and_no_more(limiter_of: Callable[..., Limiter]) -> None:
    limiter, caller = limiter_of(requests_per_minute=3), Caller(await new_user())
    for _ in range(3):
        await limiter.take(caller)
    refused = await refusal_of(limiter, caller)
    assert refused.retry_after is not None
    assert 0 < refused.retry_after <= 60
    sentence = f"your account may send 3 requests a minute and has sent 3; try again in {in_words(refused.retry_after)}"
    assert str(refused) == sentence
    assert "has sent 3;" in str(await refusal_of(limiter, caller))  # what is refused does not count
    await limiter.take(Caller(await new_user()))  # another account


async def test_several_answers_count_as_many(limiter_of: Callable[..., Limiter]) -> None:
    limiter, caller = limiter_of(requests_per_day=5), Caller(await new_user())
    await limiter.take(caller, 3)
    refused = await refusal_of(limiter, caller, 3)
    assert str(refused).startswith("your account may send 5 requests a day and has sent 3, and these are 3; try again")
    await limiter.take(caller, 2)
    never = await refusal_of(limiter, caller, 6)
    assert never.retry_after is None
    assert str(never).endswith("and these are 6; ask for less, or for a greater quota")


async def test_tokens_are_counted_afterwards(limiter_of: Callable[..., Limiter]) -> None:
    limiter, caller = limiter_of(tokens_per_minute=1000), Caller(await new_user())
    await limiter.used(caller.user.pk, None, 999)
    await limiter.take(caller)
    await limiter.used(caller.user.pk, None, 13)
    refused = await refusal_of(limiter, caller)
    assert str(refused).startswith("your account may use 1000 tokens a minute and has used 1012; try again in ")


async def test_an_account_s_own_quota_is_in_place_of_the_settings(limiter_of: Callable[..., Limiter]) -> None:
    limiter, caller = limiter_of(requests_per_minute=1, tokens_per_day=10), Caller(await new_user())
    await AccountQuota.objects.acreate(user=caller.user, requests_per_minute=2)
    await limiter.take(caller)
    await limiter.take(caller)
    assert "2 requests a minute" in str(await refusal_of(limiter, caller))
    await AccountQuota.objects.filter(user=caller.user).aupdate(requests_per_minute=4)
    await limiter.take(caller)  # what was sent before still counts
    await limiter.used(caller.user.pk, None, 10)  # an empty field: as the settings say
    assert "10 tokens a day" in str(await refusal_of(limiter, caller))
    assert [(limit.field, used) for limit, used in await usage(limiter, caller.user)] == [
        ("tokens_per_day", 10),
        ("requests_per_minute", 3),
    ]


async def test_a_key_s_quota_is_on_top(limiter_of: Callable[..., Limiter]) -> None:
    limiter, user = limiter_of(requests_per_minute=3), await new_user()
    narrow = Caller(user, await new_key(user, requests_per_minute=1, tokens_per_minute=50))
    wide = Caller(user, await new_key(user))
    await limiter.take(narrow)
    assert str(await refusal_of(limiter, narrow)).startswith("this key may send 1 request a minute and has sent 1;")
    await limiter.take(wide)
    await limiter.take(Caller(user))
    for caller in (wide, Caller(user)):  # all of an account's ways in count together
        assert "your account may send 3 requests a minute and has sent 3" in str(await refusal_of(limiter, caller))


async def test_superusers_are_limited_by_their_keys_alone(limiter_of: Callable[..., Limiter]) -> None:
    limiter, root = limiter_of(requests_per_minute=1, tokens_per_day=1), await new_user(is_superuser=True)
    for _ in range(3):
        await limiter.take(Caller(root))
    caller = Caller(root, await new_key(root, tokens_per_day=20))
    await limiter.take(caller)
    assert caller.key is not None
    await limiter.used(root.pk, caller.key.pk, 20)
    assert "this key may use 20 tokens a day and has used 20" in str(await refusal_of(limiter, caller))
    await limiter.take(Caller(root))


async def test_a_quota_of_none_at_all_is_never_over(limiter_of: Callable[..., Limiter]) -> None:
    limiter, user = limiter_of(), await new_user()
    for field in ("requests_per_day", "tokens_per_day"):
        refused = await refusal_of(limiter, Caller(user, await new_key(user, **{field: 0})))
        assert refused.retry_after is None


async def test_many_at_once_get_no_more_than_there_is(limiter_of: Callable[..., Limiter]) -> None:
    limiter, caller = limiter_of(requests_per_minute=10, requests_per_day=100), Caller(await new_user())
    taken = await asyncio.gather(*(limiter.take(caller) for _ in range(40)), return_exceptions=True)
    assert 0 < sum(one is None for one in taken) <= 10
    assert all(one is None or isinstance(one, RequestRefused) for one in taken)
    used = {limit.field: used for limit, used in await usage(limiter, caller.user)}
    assert used["requests_per_minute"] == used["requests_per_day"] == sum(one is None for one in taken)


async def test_what_is_given_back_does_not_count(limiter_of: Callable[..., Limiter]) -> None:
    limiter, caller = limiter_of(requests_per_minute=2), Caller(await new_user())
    await limiter.take(caller, 2)
    await limiter.give_back(caller, 2)
    await limiter.give_back(caller, 2)  # there is nothing left to give back
    await limiter.take(caller, 2)
    await refusal_of(limiter, caller)


async def test_a_window_ends(limiter_of: Callable[..., Limiter], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(limits.SPANS, "minute", 1)
    limiter, caller = limiter_of(requests_per_minute=1), Caller(await new_user())
    await limiter.take(caller)
    await refusal_of(limiter, caller)
    await asyncio.sleep(1.1)
    await limiter.take(caller)


async def test_all_processes_count_together(valkey: brokers.PrivateBroker) -> None:
    here, there = (Limiter(valkey.url, Quotas(requests_per_minute=2)) for _ in range(2))
    caller = Caller(await new_user())
    await here.take(caller)
    await there.take(caller)
    for limiter in (here, there):
        await refusal_of(limiter, caller)
        await limiter.close()


async def test_while_the_broker_is_away_each_process_counts_for_itself(
    valkey: brokers.PrivateBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("playground.access.windows.ASK_AGAIN_AFTER", 0.0)
    limiter, caller = Limiter(valkey.url, Quotas(requests_per_minute=2)), Caller(await new_user())
    await limiter.take(caller)
    valkey.kill()
    try:
        await limiter.take(caller, 2)
        await refusal_of(limiter, caller)
    finally:
        valkey.start()
    await limiter.take(caller, 2)  # a new broker, which has forgotten all
    await refusal_of(limiter, caller)
    await limiter.close()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (22.1, "23 s"), (120, "120 s"), (121, "3 min"), (7199, "2 h 0 min"), (18600.5, "5 h 11 min")],
)
def test_times_are_rounded_up(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


# With the gateway


@pytest_asyncio.fixture
async def gateway_of(valkey: brokers.PrivateBroker) -> AsyncIterator[Callable[..., Gateway]]:
    made: list[Gateway] = []

    def make(**options: Any) -> Gateway:
        options = {"queue_limit": 50, "resume_grace": 60, "conversation_grace": 60, **options}
        made.append(Gateway(valkey.url, **options))
        return made[-1]

    yield make
    for gateway in made:
        await gateway.client.broker.redis.flushall()
        await gateway.close()


async def read(gateway: Gateway, user: User, row: InferenceRequest) -> Any:
    return [event async for event in gateway.follow(user, str(row.pk), 0, row)][-1]


async def test_tokens_of_an_answer_count_once(
    gateway_of: Callable[..., Gateway], valkey: brokers.PrivateBroker
) -> None:
    """Two web processes write final states; one of them is the first."""
    worker = WorkerProcess(valkey.url, "w", 0.001)
    quotas = Quotas(tokens_per_day=11)
    gateway, other = gateway_of(quotas=quotas), gateway_of(quotas=quotas)
    try:
        await other.ensure_started()
        user = await new_user()
        key = await new_key(user, tokens_per_day=1000)
        row = await gateway.submit(user, prompt="one two three", params=PARAMS, key=key)
        here, there = await asyncio.wait_for(asyncio.gather(read(gateway, user, row), read(other, user, row)), 20)
        assert isinstance(here, Finish)
        assert (here.prompt_tokens, there.completion_tokens) == (3, 3)
        account, of_key = await usage(gateway.limiter, user, key)
        assert (account[1], of_key[1]) == (6, 6)
        await asyncio.wait_for(read(gateway, user, await gateway.submit(user, prompt="a b c", params=PARAMS)), 20)
        with pytest.raises(RequestRefused, match="may use 11 tokens a day and has used 12"):
            await other.submit(user, prompt="too much", params=PARAMS)
        assert await InferenceRequest.objects.acount() == 2
        assert (await InferenceRequest.objects.aget(pk=row.pk)).key_id == key.pk
    finally:
        worker.close()


async def test_nobody_pays_for_what_found_no_room(gateway_of: Callable[..., Gateway]) -> None:
    gateway = gateway_of(queue_limit=1, quotas=Quotas(requests_per_day=5))
    first, second = await new_user(), await new_user()
    await gateway.submit(first, prompt="x", params=PARAMS)
    with pytest.raises(RequestRefused, match="1 requests wait or run, and 1 are allowed; try again in") as refused:
        await gateway.submit(second, prompt="x", params=PARAMS)
    assert (refused.value.code, refused.value.retry_after) == ("queue_full", UNKNOWN)
    assert [used for _, used in await usage(gateway.limiter, second)] == [0]


async def test_an_account_has_so_many_that_wait_or_run(gateway_of: Callable[..., Gateway]) -> None:
    gateway = gateway_of(user_queue_limit=3)
    user, neighbour, root = await new_user(), await new_user(), await new_user(is_superuser=True)
    await gateway.submit_all(user, prompt="x", params=SamplingParams(n=2))
    with pytest.raises(RequestRefused) as refused:
        await gateway.submit_all(user, prompt="x", params=SamplingParams(n=2))
    words = "2 of your requests wait or run, and 3 of one account are allowed; these would be 2 more; try again in 5 s"
    assert str(refused.value) == words
    assert refused.value.retry_after == 5.0
    with pytest.raises(RequestRefused, match="these would be 4 more, which is never possible") as never:
        await gateway.submit_all(user, prompt="x", params=SamplingParams(n=4))
    assert never.value.retry_after is None
    await gateway.submit(user, prompt="x", params=PARAMS)
    await gateway.submit_all(neighbour, prompt="x", params=SamplingParams(n=3))
    await gateway.submit_all(root, prompt="x", params=SamplingParams(n=8))
    with pytest.raises(RequestRefused, match="3 of your requests"):
        await gateway.submit(user, prompt="x", params=PARAMS)
    first = await InferenceRequest.objects.filter(owner=user).afirst()
    assert first is not None
    await InferenceRequest.objects.filter(pk=first.pk).aupdate(state="completed")
    await gateway.submit(user, prompt="x", params=PARAMS)


def test_the_time_to_wait_follows_the_pace() -> None:
    room = rows.Room(10, 4, seconds_each=0.5)
    with pytest.raises(RequestRefused) as refused:
        room.check(3, {"all": 10, "own": 0}, lambda: 5)
    assert refused.value.retry_after == 2.0  # three must end, one each half second
    with pytest.raises(RequestRefused) as refused:
        room.check(1, {"all": 9, "own": 4}, lambda: 5)
    assert refused.value.retry_after == 3.0  # of five accounts, each has a fifth
    with pytest.raises(RequestRefused) as refused:
        rows.Room(10, 4, seconds_each=400.0).check(4, {"all": 9, "own": 4}, lambda: 5)
    assert refused.value.retry_after == rows.LONGEST_WAIT
    room.check(1, {"all": 9, "own": 3}, lambda: 5)


def test_the_pace_is_that_of_the_last_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("playground.pace.time.monotonic", lambda: now)
    pace = Pace()
    pace.note(0)
    assert pace.seconds_each == UNKNOWN
    for _ in range(10):
        pace.note(2)
        now += 1.0
    assert pace.seconds_each == 0.5
    now += 120.0
    assert pace.seconds_each == UNKNOWN
