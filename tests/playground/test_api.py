"""The JSON API of conversations, and the bound on bodies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.contrib.auth.models import User
from django.test import AsyncClient, Client

from playground.models import Conversation, InferenceRequest

BASE = "/api/conversations/"


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def send(client: Client, method: str, path: str, body: Any = None) -> Any:
    data = body if isinstance(body, (str, bytes)) else json.dumps(body)
    return getattr(client, method)(path, data, content_type="application/json")


def test_a_conversation_from_made_to_gone(alice: User) -> None:
    client = signed_in(alice)
    made = send(client, "post", BASE, {"title": "  About\n paged   attention "})
    assert made.status_code == 201
    row = made.json()
    assert row["title"] == "About paged attention"
    assert client.get(BASE).json() == {"conversations": [row]}
    renamed = send(client, "patch", f"{BASE}{row['id']}/", {"title": "Blocks"})
    assert (renamed.status_code, renamed.json()["title"]) == (200, "Blocks")
    assert client.delete(f"{BASE}{row['id']}/").status_code == 204
    assert client.get(f"{BASE}{row['id']}/").status_code == 404
    assert client.get(BASE).json() == {"conversations": []}


def test_turns_are_the_requests_in_order(alice: User) -> None:
    conversation = Conversation.objects.create(owner=alice)
    first = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"}]
    second = [*first, {"role": "assistant", "content": "1"}, {"role": "user", "content": "two"}]
    common = {"owner": alice, "conversation": conversation, "params": {"temperature": 0.0}, "seed": 4}
    done = InferenceRequest.objects.create(
        messages=first, state="completed", finish_reason="stop", answer="1", prompt_tokens=9, completion_tokens=1,
        receipt={"total": 5.0}, ref="r1", **common,
    )  # fmt: skip
    failed = InferenceRequest.objects.create(
        messages=second, state="failed", finish_reason="error", error_code="internal", error_message="sorry", **common
    )
    turns = signed_in(alice).get(f"{BASE}{conversation.pk}/").json()["turns"]
    assert [turn["request_id"] for turn in turns] == [str(done.pk), str(failed.pk)]
    assert [(turn["user"], turn["text"], turn["depth"], turn["state"]) for turn in turns] == [
        ("one", "1", 1, "completed"),
        ("two", "", 3, "failed"),
    ]
    assert turns[0]["usage"] == {"prompt_tokens": 9, "completion_tokens": 1, "cached_tokens": 0}
    assert turns[0]["params"] == {"temperature": 0.0, "seed": 4}
    assert (turns[0]["ref"], turns[0]["error"], turns[0]["receipt"]) == ("r1", None, {"total": 5.0})
    assert turns[1]["error"] == {"code": "internal", "message": "sorry"}


@pytest.mark.parametrize("method", ["get", "patch", "delete"])
def test_somebody_elses_conversation_does_not_exist(method: str, alice: User, bob: User) -> None:
    conversation = Conversation.objects.create(owner=alice, title="secret")
    body = {"title": "mine"} if method == "patch" else None
    client, path = signed_in(bob), f"{BASE}{conversation.pk}/"
    answer = send(client, method, path, body) if body else getattr(client, method)(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    conversation.refresh_from_db()
    assert conversation.title == "secret"
    assert signed_in(bob).get(BASE).json() == {"conversations": []}


@pytest.mark.django_db(transaction=True)
async def test_deleting_cancels_what_still_runs(alice: User, gateway: Any) -> None:
    conversation = await Conversation.objects.acreate(owner=alice)
    running = await InferenceRequest.objects.acreate(owner=alice, conversation=conversation, prompt="hi", seed=1)
    over = await InferenceRequest.objects.acreate(
        owner=alice, conversation=conversation, prompt="hi", seed=1, state="completed"
    )
    client = AsyncClient()
    await client.aforce_login(alice)
    assert (await client.delete(f"{BASE}{conversation.pk}/")).status_code == 204
    assert gateway.cancelled == {str(running.pk)}
    assert not await InferenceRequest.objects.filter(pk__in=(running.pk, over.pk)).aexists()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("{", "bad_json"),
        (b"\xff", "bad_json"),
        ("[" * 100_000, "bad_json"),
        ("[]", "bad_message"),
        ('{"title": 5}', "bad_message"),
        ('{"title": null}', "bad_message"),
        ('{"title": " "}', "bad_message"),
        ('{"title": "a\\u0000"}', "bad_message"),
        ('{"title": "\\ud800"}', "bad_message"),
        ('{"titel": "a"}', "bad_message"),
        (json.dumps({"title": "x" * 201}), "bad_message"),
    ],
)
def test_bad_bodies(body: str | bytes, code: str, alice: User) -> None:
    conversation = Conversation.objects.create(owner=alice, title="as before")
    answer = send(signed_in(alice), "patch", f"{BASE}{conversation.pk}/", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    conversation.refresh_from_db()
    assert conversation.title == "as before"


def test_a_wrong_method_is_told_so_in_json(alice: User) -> None:
    answer = send(signed_in(alice), "put", BASE, {})
    assert (answer.status_code, answer.json()["error"]["code"], answer["Allow"]) == (
        405, "method_not_allowed", "GET, POST, HEAD, OPTIONS",
    )  # fmt: skip


async def post(chunks: list[bytes], *headers: tuple[bytes, bytes]) -> tuple[int, bytes]:
    from playground.asgi import application

    scope = {
        "type": "http", "method": "POST", "path": BASE, "raw_path": BASE.encode(), "query_string": b"", "root_path": "",
        "scheme": "http", "http_version": "1.1", "headers": [(b"host", b"localhost"), *headers],
        "client": ("127.0.0.1", 1), "server": ("localhost", 80),
    }  # fmt: skip
    browser = ApplicationCommunicator(application, scope)
    for i, chunk in enumerate(chunks, 1):
        await browser.send_input({"type": "http.request", "body": chunk, "more_body": i < len(chunks)})
    start = await browser.receive_output(5)
    body = (await browser.receive_output(5))["body"]
    await browser.wait()
    return start["status"], body


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("chunks", "headers"),
    [
        ([b""], [(b"content-length", b"1048577")]),
        ([b""], [(b"content-length", b"9" * 30)]),
        ([b""], [(b"content-length", b"-1")]),
        ([b"x" * 600_000, b"x" * 600_000], []),
        ([b"x" * 1_048_577], [(b"content-length", b"5")]),
    ],
)
async def test_a_body_over_the_limit_is_413_in_json(chunks: list[bytes], headers: list[tuple[bytes, bytes]]) -> None:
    status, body = await post(chunks, *headers)
    assert status == 413
    assert json.loads(body)["error"]["code"] == "too_large"
    assert str(settings.BODY_LIMIT) in json.loads(body)["error"]["message"]


@pytest.mark.django_db(transaction=True)
async def test_a_body_at_the_limit_passes_the_bound() -> None:
    status, _ = await post([b" " * settings.BODY_LIMIT], (b"content-length", str(settings.BODY_LIMIT).encode()))
    assert status == 403  # no CSRF token: it got as far as Django
