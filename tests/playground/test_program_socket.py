"""/ws/v1/ with a bearer key: who gets in, and that it is the same conversation as the browsers'."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.utils import timezone
from support.sockets import Browser, cookie_of

from playground.access.bearer import bearer_of
from playground.access.keys import create_key, revoke
from playground.drain import get_drain
from playground.models import InferenceRequest
from playground.sockets.registry import get_open_sockets

pytestmark = pytest.mark.django_db(transaction=True)


def key_of(owner: User, *scopes: str, **fields: Any) -> str:
    return create_key(owner, "k", scopes or ("generate",), **fields)[1]


async def secret_of(owner: User, *scopes: str, **fields: Any) -> str:
    return await sync_to_async(key_of)(owner, *scopes, **fields)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], None),
        (["Bearer abc"], "abc"),
        (["bearer   abc "], "abc"),
        (["BEARER abc"], "abc"),
        (["Bearer"], None),
        (["Bearer "], None),
        (["abc"], None),
        (["Basic abc"], None),
        (["Bearerabc"], None),
        (["Bearer abc", "Bearer def"], None),
        (["Basic abc", "Bearer def"], None),
    ],
)
def test_the_key_in_the_headers(values: list[str], expected: str | None) -> None:
    headers = [(b"host", b"x"), *((b"Authorization", value.encode()) for value in values)]
    assert bearer_of(headers) == expected


async def test_an_answer_over_a_key(alice: User, gateway: Any) -> None:
    program = await Browser.with_key(await secret_of(alice))
    assert (program.hello["type"], program.hello["protocol"]) == ("hello", 1)
    await program.ask(type="generate", ref="a", prompt="one two")
    await program.ask(type="generate", ref="b", prompt="three")
    accepted: dict[str, str] = {}
    texts: dict[str, str] = {}
    ended = 0
    while ended < 2:
        frame = await program.hear()
        if frame["type"] == "accepted":
            accepted[frame["request_id"]] = frame["ref"]
        elif frame["type"] == "delta":
            ref = accepted[frame["request_id"]]
            texts[ref] = texts.get(ref, "") + frame["text"]
        ended += frame["type"] == "finished"
    assert texts == {"a": "one two ", "b": "three "}
    rows = [row async for row in InferenceRequest.objects.select_related("key")]
    assert {row.key.name for row in rows if row.key} == {"k"}, "whose key asked is on the row"
    await program.disconnect()


async def test_which_keys_open_it(alice: User, bob: User, gateway: Any) -> None:
    def keys() -> dict[str, str]:
        revoked, revoked_secret = create_key(alice, "revoked")
        revoke(revoked)
        bob.is_active = False
        bob.save()
        return {
            "good": key_of(alice),
            "old": key_of(alice, expires_at=timezone.now() - timedelta(seconds=1)),
            "revoked": revoked_secret,
            "scheduler": key_of(alice, "scheduler"),
            "nothing": create_key(alice, "n", ())[1],
            "closed account": key_of(bob),
        }

    made = {name: f"Bearer {secret}" for name, secret in (await sync_to_async(keys)()).items()}
    headers = {
        **made,
        "none": None,
        "empty": "Bearer ",
        "unknown": "Bearer bs-" + "x" * 43,
        "no key": "Bearer x",
        "other scheme": made["good"].replace("Bearer", "Basic"),
        "huge": "Bearer bs-" + "x" * 5000,
        "cut": made["good"][:-1],
        "not ascii": "Bearer bs-é",
    }
    outcomes = {
        name: await Browser("/ws/v1/", origin=None, authorization=value).outcome() for name, value in headers.items()
    }
    assert outcomes == {
        **dict.fromkeys(headers, 4401),
        "good": "open",
        "scheduler": 4403,
        "nothing": 4403,
    }


async def test_a_cookie_opens_nothing_here_and_an_origin_closes_nothing(alice: User, gateway: Any) -> None:
    cookie, secret = await sync_to_async(cookie_of)(alice), await secret_of(alice)
    assert await Browser("/ws/v1/", cookie).outcome() == 4401
    assert await Browser("/ws/v1/", cookie, authorization="Bearer bs-" + "x" * 43).outcome() == 4401
    for origin in (None, "null", "http://evil.example", "http://localhost:8000"):
        assert await Browser("/ws/v1/", None, origin, authorization=f"Bearer {secret}").outcome() == "open"
    assert await Browser("/ws/v1/", None, None, "evil.example", f"Bearer {secret}").outcome() == "refused"
    assert await Browser("/ws/chat/", None, None, authorization=f"Bearer {secret}").outcome() == "refused"
    assert await Browser("/ws/chat/", authorization=f"Bearer {secret}").outcome() == 4401


async def test_without_the_right_to_chat_neither_door_opens(alice: User, gateway: Any) -> None:
    cookie, secret = await sync_to_async(cookie_of)(alice), await secret_of(alice)
    await alice.groups.aclear()
    assert await Browser("/ws/chat/", cookie).outcome() == 4403
    assert await Browser("/ws/v1/", origin=None, authorization=f"Bearer {secret}").outcome() == 4403


async def test_the_close_says_why(alice: User, gateway: Any) -> None:
    program = Browser("/ws/v1/", origin=None)
    await program.connect(5)
    closing = await program.closing()
    assert (closing["code"], closing["reason"]) == (4401, "this needs an account or a valid key")
    await program.disconnect()


async def test_so_many_sockets_an_account(alice: User, root: User, gateway: Any, settings: Any) -> None:
    settings.BATCHSCOPE = settings.BATCHSCOPE.model_copy(update={"sockets_per_user": 2, "sockets_limit": 5})
    get_open_sockets.cache_clear()
    secret, of_root = await secret_of(alice), await secret_of(root)
    mine = [await Browser.with_key(secret), await Browser.of(alice)]
    third = Browser("/ws/v1/", origin=None, authorization=f"Bearer {secret}")
    await third.connect(5)
    closing = await third.closing()
    assert (closing["code"], closing["reason"]) == (1013, "your account has 2 sockets open, and 2 are allowed")
    await third.disconnect()
    theirs = [await Browser.with_key(of_root) for _ in range(3)]
    sixth = Browser("/ws/v1/", origin=None, authorization=f"Bearer {of_root}")
    await sixth.connect(5)
    words = "this server has 5 sockets open, and 5 are allowed; try again later"
    assert (await sixth.closing())["reason"] == words
    await sixth.disconnect()
    await mine.pop().disconnect()
    mine.append(await Browser.with_key(secret))
    for program in (*mine, *theirs):
        await program.disconnect()
    assert len(get_open_sockets()) == 0
    get_open_sockets.cache_clear()


@pytest.fixture
def ending(settings: Any) -> Callable[[float], asyncio.Task[None]]:
    """Ends this process, as far as sockets know: with so many seconds for what is under way."""

    def end(timeout: float) -> asyncio.Task[None]:
        settings.BATCHSCOPE = settings.BATCHSCOPE.model_copy(update={"drain_timeout": timeout})
        get_drain.cache_clear()
        return asyncio.create_task(get_drain().run([get_open_sockets()]))

    return end


STOPS = (1012, "this server stops; connect again and resume your requests")


async def test_all_sockets_are_told_that_the_server_stops(
    alice: User, staff: User, gateway: Any, ending: Callable[[float], asyncio.Task[None]]
) -> None:
    sockets = [await Browser.with_key(await secret_of(alice)), await Browser.of(staff, "/ws/scheduler/")]
    await sockets[1].hear("snapshot")
    await sockets[0].ask(type="generate", prompt="slow one")
    request_id = (await sockets[0].hear("delta"))["request_id"]
    draining = ending(0)
    for socket in sockets:
        assert await socket.hear("draining") == {"type": "draining"}
        closing = await socket.closing()
        assert (closing["code"], closing["reason"]) == STOPS
    late = Browser("/ws/v1/", origin=None, authorization=f"Bearer {await secret_of(alice)}")
    assert await late.outcome() == 1012
    assert gateway.followers == 1, "the request has not lost its reader: it is going to come back"
    for socket in sockets:
        await socket.disconnect()
    await draining
    gateway.cancelled.add(request_id)


@pytest.mark.parametrize("hurry", [False, True])
async def test_answers_under_way_are_waited_for_until_somebody_hurries(
    alice: User, staff: User, gateway: Any, ending: Callable[[float], asyncio.Task[None]], hurry: bool
) -> None:
    busy, idle = await Browser.with_key(await secret_of(alice)), await Browser.of(staff, "/ws/scheduler/")
    await busy.ask(type="generate", prompt="slow one")
    request_id = (await busy.hear("delta"))["request_id"]
    draining = ending(600)
    assert await idle.hear("draining") == await busy.hear("draining")
    closing = await idle.closing()
    assert (closing["code"], closing["reason"]) == STOPS
    await idle.disconnect()
    await busy.ask(type="ping", t=1)
    assert await busy.hear("pong")
    if hurry:
        get_drain().hurry()
    else:
        gateway.cancelled.add(request_id)
        assert await busy.hear("finished")
    closing = await busy.closing()
    assert (closing["code"], closing["reason"]) == STOPS
    await busy.disconnect()
    await draining
    gateway.cancelled.add(request_id)


async def test_who_leaves_while_the_server_drains_has_lost_its_reader(
    alice: User, gateway: Any, ending: Callable[[float], asyncio.Task[None]]
) -> None:
    leaving = await Browser.with_key(await secret_of(alice))
    await leaving.ask(type="generate", prompt="slow one")
    await leaving.hear("delta")
    draining = ending(600)
    await leaving.hear("draining")
    await leaving.disconnect()
    await draining
    assert gateway.followers == 0


async def test_an_address_without_its_last_slash_is_the_same_door(alice: User, gateway: Any) -> None:
    program = await Browser.with_key(await secret_of(alice), "/ws/v1")
    assert program.hello["type"] == "hello"
    await program.disconnect()
    cookie = await sync_to_async(cookie_of)(alice)
    assert await Browser("/ws/v1", cookie).outcome() == 4401  # no cookie opens it
    assert await Browser("/ws/chat", cookie).outcome() == "refused"
