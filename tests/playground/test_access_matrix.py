"""Who gets in where: every door, by HTTP and by WebSocket, against everybody who may knock. One table."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Permission, User
from django.test import AsyncClient
from support.sockets import HOST, ORIGIN, Browser, cookie_of

from inference.serving.client import UNREACHABLE
from playground.access.keys import create_key, revoke
from playground.models import Conversation, InferenceRequest

pytestmark = pytest.mark.django_db(transaction=True)
EVIL = "https://evil.example"
TOKEN = "t" * 32  # against forged requests

# Sessions: of an account that may chat; of one that may watch too; of staff; that of the first, sent by a page of
# another origin. Keys: with one scope each, of the account that may watch; one that was revoked, alone and beside the
# watcher's cookie; the one for answers sent with another origin.
WHO = ("nobody", "chats", "watches", "staff", "evil", "k:gen", "k:sched", "k:metr", "k:dead", "c+dead", "k+evil")

# What each gets. 400: let in, and the (empty) body refused. 302: to the login page, or away from it. Sockets: "open",
# closed with a code, or "no" handshake. 404: let in, and there is nothing. 503 at /metrics: let in, and no broker here.
# 403 of a POST with neither a cookie of ours nor a token against forgery: whoever it is.
TABLE = """
                                  nobody  chats   watches staff   evil    k:gen   k:sched k:metr  k:dead  c+dead  k+evil
WS   /ws/chat/                    4401    open    open    open    no      no      no      no      no      open    no
WS   /ws/v1/                      4401    4401    4401    4401    4401    open    4403    4403    4401    4401    open
WS   /ws/scheduler/               4401    4403    open    open    no      4403    open    4403    4401    4401    4403
WS   /ws/                         no      no      no      no      no      no      no      no      no      no      no
GET  /                            302     200     200     200     200     302     302     302     302     200     302
GET  /login/                      200     302     302     302     302     200     200     200     200     302     200
GET  /scheduler/                  302     403     200     200     403     302     302     302     302     200     302
GET  /scheduler/iterations/       401     403     200     200     403     401     401     401     401     200     401
GET  /scheduler/blocks/           401     403     404     404     403     401     401     401     401     404     401
GET  /scheduler/export/           401     403     404     404     403     401     401     401     401     404     401
POST /scheduler/control/          401     403     403     400     403     403     403     403     403     403     403
POST /scheduler/demo/             401     403     403     202     403     403     403     403     403     403     403
GET  /api/conversations/          401     200     200     200     200     401     401     401     401     200     401
POST /api/conversations/          401     201     201     201     403     403     403     403     403     201     403
GET  /v1/models                   401     401     401     401     401     200     200     200     401     401     200
POST /v1/completions              401     401     401     401     401     400     403     403     401     401     400
POST /v1/chat/completions         401     401     401     401     401     400     403     403     401     401     400
GET  /v1/openapi.json             401     200     200     200     200     200     200     200     401     401     200
GET  /asyncapi.json               302     200     200     200     200     302     302     302     302     200     302
GET  /docs/api/                   302     200     200     200     200     302     302     302     302     200     302
GET  /docs/websocket/             302     200     200     200     200     302     302     302     302     200     302
GET  /metrics                     401     403     503     503     403     403     403     503     401     401     403
GET  /health                      503     503     503     503     503     503     503     503     503     503     503
GET  /health/live                 200     200     200     200     200     200     200     200     200     200     200
GET  /health/ready                200     200     200     200     200     200     200     200     200     200     200
GET  /admin/                      302     302     302     200     302     302     302     302     302     302     302
"""


@dataclass
class Knock:
    cookie: str | None = None
    origin: str | None = None
    authorization: str | None = None


@pytest.fixture
async def knocks(alice: User, bob: User, staff: User) -> dict[str, Knock]:
    def make() -> dict[str, Knock]:
        bob.user_permissions.add(Permission.objects.get(codename="watch_scheduler"))
        cookies = {user.username: cookie_of(user) for user in (alice, bob, staff)}
        made = {scope: create_key(bob, scope, [scope]) for scope in ("generate", "scheduler", "metrics")}
        dead, secret = create_key(bob, "dead", ["generate", "scheduler", "metrics"])
        revoke(dead)
        keys = {name: f"Bearer {secret}" for name, (_, secret) in made.items()}
        return {
            "nobody": Knock(origin=ORIGIN),
            "chats": Knock(cookies["alice"], ORIGIN),
            "watches": Knock(cookies["bob"], ORIGIN),
            "staff": Knock(cookies["staff"], ORIGIN),
            "evil": Knock(cookies["alice"], EVIL),
            "k:gen": Knock(authorization=keys["generate"]),
            "k:sched": Knock(authorization=keys["scheduler"]),
            "k:metr": Knock(authorization=keys["metrics"]),
            "k:dead": Knock(authorization=f"Bearer {secret}"),
            "c+dead": Knock(cookies["bob"], ORIGIN, f"Bearer {secret}"),
            "k+evil": Knock(origin=EVIL, authorization=keys["generate"]),
        }

    return await sync_to_async(make)()


async def outcome(method: str, path: str, knock: Knock) -> str:
    if method == "WS":
        result = str(await Browser(path, knock.cookie, knock.origin, HOST, knock.authorization).outcome())
        return "no" if result == "refused" else result
    client = AsyncClient(enforce_csrf_checks=True, raise_request_exception=False)
    client.cookies.load(knock.cookie or "")
    given = {"authorization": knock.authorization, "origin": knock.origin}
    if knock.origin == ORIGIN:  # a page of ours: it has the token, and the test client's own name
        client.cookies["csrftoken"] = TOKEN
        given = {**given, "origin": "http://testserver", "x-csrftoken": TOKEN}
    headers = {name: value for name, value in given.items() if value is not None}
    body = {"data": "{}", "content_type": "application/json"} if method == "POST" else {}
    return str((await getattr(client, method.lower())(path, headers=headers, **body)).status_code)


async def test_the_table(knocks: dict[str, Knock], gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from playground.http import metrics

    def no_broker() -> Any:
        raise UNREACHABLE[0]

    monkeypatch.setattr(metrics, "get_gateway", no_broker)
    head, *lines = [line.split() for line in TABLE.strip().splitlines()]
    assert tuple(head) == WHO
    assert tuple(knocks) == WHO
    found = [[method, path, *[await outcome(method, path, knocks[who]) for who in WHO]] for method, path, *_ in lines]
    assert found == lines


def test_every_address_is_in_the_table_or_is_somebody_elses() -> None:
    """The admin's own pages and those with an id in them have their own tests (test_crawl.py)."""
    from django.urls import get_resolver

    from playground.sockets.urls import urlpatterns

    in_table = {line.split()[1] for line in TABLE.strip().splitlines()[1:]}
    http = {f"/{pattern.pattern}" for pattern in get_resolver().url_patterns}
    elsewhere = {"/admin/login/", "/docs/", "/language/", "/logout/", "/v1/"}
    assert {path for path in http if "<" not in path} - elsewhere <= in_table
    assert {f"/{pattern.pattern}" for pattern in urlpatterns if str(pattern.pattern)} <= in_table


@pytest.mark.parametrize(
    ("host", "origin", "expected"),
    [
        ("localhost:8000", "http://localhost:8000", "open"),
        ("localhost:8000", "http://localhost:8001", "refused"),
        ("localhost:8000", "http://localhost", "refused"),
        ("localhost:8000", "https://localhost:8000", "refused"),
        ("localhost:8000", "null", "refused"),
        ("localhost:8000", None, "refused"),
        ("localhost:8000", EVIL, "refused"),
        ("evil.example", EVIL, "refused"),
        ("evil.example", "http://localhost:8000", "refused"),
    ],
)
@pytest.mark.parametrize("path", ["/ws/chat/", "/ws/scheduler/"])
async def test_hosts_and_origins_with_a_good_cookie(
    path: str, host: str, origin: str | None, expected: str, knocks: dict[str, Knock], gateway: Any
) -> None:
    assert await Browser(path, knocks["staff"].cookie, origin, host).outcome() == expected


@pytest.mark.parametrize("path", ["/ws/v1/", "/ws/scheduler/"])
async def test_a_key_needs_no_origin_but_one_of_our_hosts(path: str, knocks: dict[str, Knock], gateway: Any) -> None:
    key = knocks["k:gen" if path == "/ws/v1/" else "k:sched"].authorization
    outcomes = [
        await Browser(path, None, origin, host, key).outcome()
        for origin in (None, "null", ORIGIN, EVIL)
        for host in (HOST, "evil.example")
    ]
    assert outcomes == ["open", "refused"] * 4


# What is somebody else's


async def test_nobody_reaches_anothers_requests_by_any_socket_and_any_message(
    alice: User, staff: User, root: User, knocks: dict[str, Knock], gateway: Any
) -> None:
    """Neither another account, nor staff, nor a superuser: and all that they learn is that there is no such thing."""
    mine = await Browser.of(alice)
    await mine.ask(type="generate", prompt="slow secret")
    request_id = (await mine.hear("accepted"))["request_id"]
    await mine.hear("delta")
    conversation = await Conversation.objects.acreate(owner=alice, title="secret")
    others = [
        await Browser("/ws/chat/", knocks["watches"].cookie).open(),
        await Browser("/ws/v1/", origin=None, authorization=knocks["k:gen"].authorization).open(),
        await Browser.of(staff),
        await Browser.of(root),
    ]
    for other in others:
        for wanted in (request_id, request_id.upper(), "{" + request_id + "}", str(uuid.UUID(int=7))):
            for kind in ("cancel", "resume"):
                await other.ask(type=kind, request_id=wanted)
                error = await other.hear()
                assert (error["type"], error["code"]) == ("error", "not_found")
                assert error["message"] == "there is no such request"
            await other.ask(type="ack", request_id=wanted, seq=1)  # says nothing to anybody
        for wanted in (str(conversation.pk), str(uuid.UUID(int=7))):
            await other.ask(type="generate", prompt="hi", conversation=wanted, ref=request_id)
            error = await other.hear()
            assert (error["code"], error["message"]) == ("not_found", "there is no such conversation")
        await other.ask(type="ping")
        assert (await other.hear())["type"] == "pong"
        await other.disconnect()
    assert gateway.cancelled == set()
    assert await InferenceRequest.objects.acount() == 1
    await mine.ask(type="cancel", request_id=request_id)
    assert (await mine.hear("finished"))["finish_reason"] == "cancelled"
    await mine.disconnect()
