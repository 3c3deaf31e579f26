"""Every address of the service, by every method, with the ids of somebody else: nothing comes back, nothing changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from channels.db import database_sync_to_async
from django.apps import apps
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.contrib.sessions.models import Session
from django.test import AsyncClient
from django.urls import get_resolver
from support.admin import RECEIPT, add

from playground.access import attempts
from playground.access.keys import create_key
from playground.models import SCOPES, AccountQuota, ApiKey, Conversation, IdempotentCall, InferenceRequest, PromptRead

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "a secret of alice"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
OPEN = {"/login/", "/health", "/health/live", "/health/ready"}
BY_ID = "/api/conversations/"
PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>")


@dataclass
class Belongings:
    """What alice has, and what names it."""

    conversation: Conversation
    row: InferenceRequest
    key: ApiKey
    secret: str
    ids: dict[str, list[str]]  # by the words that stand before them in addresses


@pytest.fixture
def hers(alice: User, root: User) -> Belongings:
    conversation = Conversation.objects.create(owner=alice, title=SECRET)
    key, secret = create_key(alice, SECRET, SCOPES)
    texts = {"messages": [{"role": "user", "content": SECRET}], "answer": SECRET, "ref": SECRET}
    row = add(alice, RECEIPT, conversation=conversation, key=key, **texts)
    running = add(alice, **texts, state="running")
    quota = AccountQuota.objects.create(user=alice, requests_per_day=77)
    reading = PromptRead.objects.create(reader=root, reader_name="root", what="request", subject=row.pk)
    ids = {
        "conversations": [str(conversation.pk)],
        "conversation": [str(conversation.pk)],
        "inferencerequest": [str(row.pk), str(running.pk)],
        "apikey": [str(key.pk)],
        "accountquota": [str(quota.pk)],
        "promptread": [str(reading.pk)],
        "user": [str(alice.pk)],
        "group": ["1"],
    }
    return Belongings(conversation, row, key, secret, ids)


def addresses(ids: dict[str, list[str]]) -> list[str]:
    """Every one that the service answers to, with these ids where it has a place for one."""
    found: list[str] = []
    for route in _routes(get_resolver()):
        route = route.replace("^(?P<app_label>playground|auth)/$", "playground/").replace("(?P<url>.*)$", "x")
        words = [word for word in route.split("/") if word in ids]
        known = ids[words[-1]] if words else [ids["inferencerequest"][0]]
        found += sorted({"/" + PARAMETER.sub(one, route) for one in known} if "<" in route else {"/" + route})
    return found


def _routes(resolver: Any, before: str = "") -> Iterator[str]:
    for pattern in resolver.url_patterns:
        route = before + str(pattern.pattern)
        if hasattr(pattern, "url_patterns"):
            yield from _routes(pattern, route)
        else:
            yield route


def everything_of(user: User) -> list[Any]:
    """All rows that could change: of every table, but the ones that are noted as a matter of course."""
    noted = (Session, ContentType, IdempotentCall)
    models = [model for model in apps.get_models() if model not in noted]
    rows = [(model.__name__, repr(sorted(map(repr, model._default_manager.values())))) for model in models]
    return [*rows, user.password]


async def crawl(client: AsyncClient, hers: Belongings, **headers: str) -> dict[tuple[str, str], Any]:
    """Answers by address and method."""
    request_id = hers.ids["inferencerequest"][0]
    query = {"request": request_id, "q": SECRET, "owner": hers.ids["user"][0], "key": hers.ids["apikey"][0]}
    body = {"request_id": request_id, "conversation": str(hers.conversation.pk), "title": "taken over"}
    answers: dict[tuple[str, str], Any] = {}
    for path in addresses(hers.ids):
        for method in METHODS:
            if path == "/logout/" and method == "POST":
                continue  # the crawler's own session
            sent: dict[str, Any] = {"query_params": query}
            if method in ("POST", "PUT", "PATCH"):
                chosen = {"title": "taken over"} if path.startswith(BY_ID) else body
                sent |= {"data": chosen, "content_type": "application/json"}
            answers[path, method] = await getattr(client, method.lower())(path, headers=headers, **sent)
    return answers


async def content_of(answer: Any) -> str:
    pieces = [piece async for piece in answer] if answer.streaming else [answer.content]
    return b"".join(pieces).decode()


async def check_nothing_of_hers(answers: dict[tuple[str, str], Any], hers: Belongings) -> None:
    for where, answer in answers.items():
        said = (await content_of(answer)).replace(f"q={SECRET}", "")
        assert answer.status_code < 500 or where[0] in ("/health", "/metrics"), where
        assert hers.key.key_hash not in said, where
        assert hers.secret not in said, where
        for line in said.splitlines():
            # What the crawler itself has typed into the search box may stand there again.
            assert SECRET not in line or 'name="q"' in line or "?" in line, (where, line)


def test_the_addresses_are_all_there(hers: Belongings) -> None:
    found = addresses(hers.ids)
    for path in (
        *("/", "/login/", "/scheduler/iterations/", "/v1/chat/completions", "/metrics", "/health/live"),
        f"/api/conversations/{hers.conversation.pk}/",
        f"/admin/playground/inferencerequest/{hers.row.pk}/cancel/",
        f"/admin/playground/apikey/{hers.key.pk}/revoke/",
        f"/admin/auth/user/{hers.row.owner_id}/change/",
    ):
        assert path in found
    assert len(found) > 70


async def test_to_a_stranger_nothing_is_open_but_the_way_in(hers: Belongings, alice: User, gateway: Any) -> None:
    before = await database_sync_to_async(everything_of)(alice)
    answers = await crawl(AsyncClient(), hers)
    await check_nothing_of_hers(answers, hers)
    opened = {path for (path, _), answer in answers.items() if answer.status_code < 300}
    assert opened <= OPEN
    for (path, method), answer in answers.items():
        if answer.status_code in (301, 302) and path != "/language/":
            assert "/login/" in answer["Location"] or answer["Location"].endswith("/"), (path, method)
    assert await database_sync_to_async(everything_of)(alice) == before
    assert not gateway.cancelled


@pytest.mark.parametrize("way", ["session", "key"])
async def test_another_user_gets_nothing(way: str, hers: Belongings, alice: User, bob: User, gateway: Any) -> None:
    client, headers = AsyncClient(), {}
    if way == "session":
        await client.aforce_login(bob)
    else:
        _, secret = await database_sync_to_async(create_key)(bob, "his", SCOPES)
        headers = {"Authorization": f"Bearer {secret}"}
    before = await database_sync_to_async(everything_of)(alice)
    answers = await crawl(client, hers, **headers)
    await check_nothing_of_hers(answers, hers)
    for (path, method), answer in answers.items():
        if path.startswith("/admin/"):
            assert answer.status_code in (302, 403, 404), (path, method)
        elif path.startswith(BY_ID) and path != BY_ID and method != "OPTIONS":
            allowed = {"session": (404, 405), "key": (401,)}[way]
            assert answer.status_code in allowed, (path, method)
            assert answer.status_code == 404 or way == "key" or method not in ("GET", "PATCH", "DELETE")
    opened = {path for (path, _), answer in answers.items() if answer.status_code < 300}
    if way == "key":  # where browsers go, it counts for nothing
        assert {path for path in opened - OPEN if not path.startswith("/v1/")} == set()
        assert "/v1/models" in opened
    else:
        assert {path for path in opened if path.startswith("/v1/")} == {"/v1/openapi.json"}
        assert "/api/conversations/" in opened
    assert await without_what_is_his(alice, bob) == [
        one for one in before if not isinstance(one, tuple) or one[0] not in ("Conversation", "ApiKey")
    ]
    await hers.conversation.arefresh_from_db()
    await hers.key.arefresh_from_db()
    assert (hers.conversation.title, hers.key.revoked_at, hers.key.last_used_at) == (SECRET, None, None)
    assert not gateway.cancelled


async def without_what_is_his(alice: User, bob: User) -> list[Any]:
    """He may have made a conversation of his own, and his key is noted as used."""
    assert not await Conversation.objects.exclude(owner__in=(alice, bob)).aexists()
    rows = await database_sync_to_async(everything_of)(alice)
    return [one for one in rows if not isinstance(one, tuple) or one[0] not in ("Conversation", "ApiKey")]


async def test_staff_without_rights_reads_and_changes_nothing_of_hers(
    hers: Belongings, alice: User, staff: User, gateway: Any
) -> None:
    client = AsyncClient()
    await client.aforce_login(staff)
    answers = await crawl(client, hers)
    await check_nothing_of_hers(answers, hers)
    for (path, method), answer in answers.items():
        if any(f"/{model}/{pk}/" in path for model in ("apikey", "inferencerequest", "user") for pk in hers.ids[model]):
            assert answer.status_code in (302, 403, 404, 405), (path, method)
    for row in (hers.row, hers.conversation, hers.key):
        was = dict(row.__dict__)
        await row.arefresh_from_db()
        same = {name: value for name, value in row.__dict__.items() if name in was and not name.startswith("_")}
        assert same == {name: was[name] for name in same}
    assert not gateway.cancelled


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No broker, and no wrong login link so far."""

    def away() -> None:
        raise ConnectionError

    monkeypatch.setattr("playground.http.metrics.get_gateway", away)
    attempts._own_windows.cache_clear()
    yield
    attempts._own_windows.cache_clear()
