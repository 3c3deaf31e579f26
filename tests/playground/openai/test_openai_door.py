"""What is below /v1/ without a network: who comes in, what every error looks like, and streams that go wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import pytest_asyncio
from channels.db import database_sync_to_async
from django.contrib.auth.models import User
from django.test import Client

from inference.scheduling.request import RequestRefused
from inference.serving.messages import Delta, Finish
from playground.access.keys import create_key, revoke
from playground.drain import get_drain
from playground.http.openai import api, calls
from playground.models import InferenceRequest
from playground.sockets import registry

pytestmark = pytest.mark.django_db(transaction=True)
CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
SECRET = "a secret of the server: /etc/passwd at 10.0.0.7"


class Told:
    """A gateway whose answers are what a test says: events, seconds to wait, or something to raise."""

    def __init__(self, *events: Any) -> None:
        self.events = events or (Delta("", 1, "Hi", [1], 1), Finish("", 2, "stop", prompt_tokens=3))
        self.refusal: Exception | None = None
        self.cancelled: list[str] = []
        self.asked: list[dict[str, Any]] = []

    async def submit_all(self, user: User, **fields: Any) -> list[InferenceRequest]:
        if self.refusal is not None:
            raise self.refusal
        self.asked.append(fields)
        row = InferenceRequest(owner=user, seed=1, **fields["asked"][0])
        await row.asave(force_insert=True)
        return [row]

    async def follow(self, user: User, request_id: str, after_seq: int, row: Any) -> AsyncIterator[Any]:
        for event in self.events:
            if isinstance(event, Exception):
                raise event
            if isinstance(event, float):
                await asyncio.sleep(event)
            else:
                yield replace(event, request_id=request_id)

    async def cancel(self, user: User, request_id: str) -> bool:
        self.cancelled.append(request_id)
        return True


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is told of with what they know; here is none."""

    async def engines(max_age: float) -> list[Any]:
        return []

    client = SimpleNamespace(engines=engines)
    monkeypatch.setattr(api, "get_gateway", lambda: SimpleNamespace(client=client))


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Told:
    told = Told()
    monkeypatch.setattr(calls, "get_gateway", lambda: told)
    calls.get_open_calls.cache_clear()  # those of an earlier test have that one's loop
    return told


@pytest.fixture
def chatter(db: None) -> User:
    """New accounts may chat."""
    return User.objects.create_user("chatter")


@pytest.fixture
def key(chatter: User) -> str:
    return create_key(chatter, "test")[1]


def client_with(headers: dict[str, str]) -> httpx.AsyncClient:
    from playground.asgi import application

    return httpx.AsyncClient(
        transport=httpx.ASGITransport(application), base_url="http://localhost", headers=headers, timeout=30.0
    )


@pytest_asyncio.fixture
async def http(key: str) -> AsyncIterator[httpx.AsyncClient]:
    async with client_with({"Authorization": f"Bearer {key}"}) as http:
        yield http


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error, in OpenAI's shape and nothing beside it."""
    assert answer.headers["content-type"] == "application/json"
    [(name, error)] = answer.json().items()
    assert name == "error"
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def test_logprobs_of_an_answer_without_text_are_none_and_not_missing(
    http: httpx.AsyncClient, gateway: Told
) -> None:
    """As where the first token is a stop."""
    one = {"token_id": 1, "token": "x", "logprob": -1.0, "top": []}
    gateway.events = (Finish("", 1, "stop", prompt_tokens=3, completion_tokens=1, logprobs=[one]),)
    answer = await http.post(CHAT, json={**HELLO, "logprobs": True})
    assert answer.json()["choices"][0]["logprobs"] == {"content": [], "refusal": None}
    gateway.events = (Finish("", 1, "stop", prompt_tokens=3),)
    assert (await http.post(CHAT, json=HELLO)).json()["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("stop", [""]), ("logit_bias", {"-1": 1}), ("stop_token_ids", [-1]), ("n", 0), ("top_p", 2.0)],
)
async def test_the_parameter_that_is_wrong_is_named(
    field: str, value: Any, http: httpx.AsyncClient, gateway: Told
) -> None:
    answer = await http.post(CHAT, json={**HELLO, field: value})
    assert (answer.status_code, error_of(answer)["param"]) == (400, field)


async def test_an_answer(http: httpx.AsyncClient, gateway: Told, chatter: User) -> None:
    answer = await http.post(CHAT, json=HELLO)
    assert (answer.status_code, answer.json()["choices"][0]["message"]["content"]) == (200, "Hi")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "private, no-store"
    assert "set-cookie" not in answer.headers
    [asked] = gateway.asked
    assert asked["key"].owner == chatter
    assert asked["received_at"] > 0


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/", 404, "not_found"),
        ("GET", "/v1/nowhere", 404, "not_found"),
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
        ("GET", "/v1/models/", 404, "not_found"),
    ],
)
async def test_wrong_addresses(http: httpx.AsyncClient, method: str, path: str, status: int, code: str) -> None:
    answer = await http.request(method, path)
    assert (answer.status_code, error_of(answer)["code"]) == (status, code)
    if status == 405:
        assert answer.headers["allow"] in ("POST", "GET")


BAD_KEYS = {
    "none": {},
    "unknown": {"Authorization": "Bearer bs-unknown"},
    "no key": {"Authorization": "Bearer"},
    "another scheme": {"Authorization": "Basic YTpi"},
    "not ours": {"Authorization": "Bearer sk-" + "x" * 500},
    "half a character": {"Authorization": "Bearer bs-\udce9"},
}


@pytest.mark.parametrize("what", BAD_KEYS)
@pytest.mark.parametrize(("method", "path"), [("POST", CHAT), ("POST", "/v1/completions"), ("GET", "/v1/models"),
                                              ("GET", "/v1/models/x"), ("GET", "/v1/openapi.json")])  # fmt: skip
async def test_who_is_it(gateway: Told, db: None, what: str, method: str, path: str) -> None:
    headers = {name: value.encode("utf-8", "surrogateescape") for name, value in BAD_KEYS[what].items()}
    async with client_with(headers) as http:  # type: ignore[arg-type]
        answer = await http.request(method, path, content=b"{" if method == "POST" else None)
    assert (answer.status_code, error_of(answer)["code"]) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert gateway.asked == []


async def test_two_keys_are_none(key: str, gateway: Told) -> None:
    async with client_with({}) as http:
        twice = [("Authorization", f"Bearer {key}"), ("Authorization", f"Bearer {key}")]
        assert (await http.post(CHAT, json=HELLO, headers=twice)).status_code == 401


async def test_may_they(chatter: User, gateway: Told) -> None:
    _, secret = await database_sync_to_async(create_key)(chatter, "for the scheduler", ["scheduler"])
    async with client_with({"Authorization": f"Bearer {secret}"}) as http:
        answer = await http.post(CHAT, content=b"{")  # who it is and whether they may come before what they say
        assert (answer.status_code, error_of(answer)["code"]) == (403, "forbidden")
        assert (await http.get("/v1/models")).status_code == 200
    await chatter.groups.aclear()
    _, secret = await database_sync_to_async(create_key)(chatter, "generate")
    async with client_with({"Authorization": f"Bearer {secret}"}) as http:
        assert (await http.post(CHAT, json=HELLO)).status_code == 403
    chatter.is_active = False
    await chatter.asave()
    async with client_with({"Authorization": f"Bearer {secret}"}) as http:
        assert (await http.post(CHAT, json=HELLO)).status_code == 401


async def test_cookies_are_not_looked_at(chatter: User, gateway: Told, http: httpx.AsyncClient) -> None:
    def signed_in() -> str:
        browser = Client()
        browser.force_login(chatter)
        return browser.cookies["sessionid"].value

    cookie = await database_sync_to_async(signed_in)()
    async with client_with({"Cookie": f"sessionid={cookie}"}) as browser:
        assert (await browser.post(CHAT, json=HELLO)).status_code == 401
        assert (await browser.get("/v1/models")).status_code == 401
        assert (await browser.get("/v1/openapi.json")).status_code == 200
    bad = {"Cookie": "sessionid=nonsense; csrftoken=x", "Origin": "https://evil.example", "Accept-Language": "zh-hans"}
    answer = await http.post(CHAT, json=HELLO, headers=bad)
    assert answer.status_code == 200
    assert "vary" not in answer.headers


async def test_a_key_opens_no_page(http: httpx.AsyncClient) -> None:
    for path in ("/", "/scheduler/", "/admin/", "/api/conversations/"):
        assert (await http.get(path)).status_code in (302, 401)


async def test_the_host_must_be_ours(http: httpx.AsyncClient, gateway: Told) -> None:
    answer = await http.post(CHAT, json=HELLO, headers={"Host": "evil.example"})
    assert (answer.status_code, error_of(answer)["code"]) == (400, "bad_message")
    assert gateway.asked == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "bad_json"),
        (b"{", "bad_json"),
        (b"[]", "bad_message"),
        (b'"x"', "bad_message"),
        (b"\xff\xfe", "bad_json"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "bad_json"),
        (b'{"messages": [{"role": "user", "content": "\\u0000"}]}', "bad_message"),
        (b'{"temperature": NaN}', "bad_json"),
        (b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}", "bad_json"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "bad_json"),
        (b"{}", "bad_message"),
    ],
)
async def test_bodies_that_are_none(http: httpx.AsyncClient, gateway: Told, body: bytes, code: str) -> None:
    answer = await http.post(CHAT, content=body)
    assert (answer.status_code, error_of(answer)["code"]) == (400, code)


async def test_a_body_over_the_limit(http: httpx.AsyncClient) -> None:
    answer = await http.post(CHAT, content=b" " * ((1 << 20) + 1))
    assert (answer.status_code, error_of(answer)["code"]) == (413, "too_large")


async def test_refusals_of_the_gateway(http: httpx.AsyncClient, gateway: Told) -> None:
    refusals = {
        "queue_full": (429, "12"),
        "rate_limited": (429, "12"),
        "draining": (503, "12"),
        "conflict": (409, "12"),
    }
    for code, (status, seconds) in refusals.items():
        gateway.refusal = RequestRefused(code, "in words", 11.2)
        answer = await http.post(CHAT, json=HELLO)
        assert (answer.status_code, error_of(answer)["code"], answer.headers["retry-after"]) == (status, code, seconds)


async def test_what_breaks_says_nothing_of_the_server(
    http: httpx.AsyncClient, gateway: Told, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.refusal = ZeroDivisionError(SECRET)
    answer = await http.post(CHAT, json=HELLO)
    assert (answer.status_code, error_of(answer)["code"]) == (500, "internal")
    assert "secret" not in answer.text
    gateway.refusal = ConnectionRefusedError(SECRET)
    answer = await http.post(CHAT, json=HELLO)
    assert (answer.status_code, error_of(answer)["code"]) == (503, "engine_unavailable")
    assert "secret" not in answer.text
    assert "retry-after" in answer.headers


ENDS = {
    "prompt_too_long": (Finish("", 1, "error", error_code="prompt_too_long", error_message="too long"), 400),
    "numerical_error": (Finish("", 1, "error", error_code="numerical_error", error_message="no number"), 500),
    "engine_unavailable": (Finish("", 1, "error", error_code="engine_unavailable", error_message="away"), 503),
    "expired": (Finish("", 1, "expired", error_message="it waited 600 s"), 503),
}


@pytest.mark.parametrize("code", ENDS)
async def test_requests_that_come_to_nothing(http: httpx.AsyncClient, gateway: Told, code: str) -> None:
    end, status = ENDS[code]
    gateway.events = (end,)
    for stream in (False, True):
        answer = await http.post(CHAT, json={**HELLO, "stream": stream})
        assert (answer.status_code, error_of(answer)["code"]) == (status, code)
    gateway.events = (Delta("", 1, "Hi", [1], 1), end)
    answer = await http.post(CHAT, json={**HELLO, "stream": True})
    assert answer.status_code == 200
    *_, last, empty, nothing = [*answer.text.split("\n\n"), ""]
    assert (empty, nothing) == ("", "")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == code
    assert "[DONE]" not in answer.text
    assert (await http.post(CHAT, json=HELLO)).status_code == status


async def test_a_stream_that_breaks(http: httpx.AsyncClient, gateway: Told) -> None:
    gateway.events = (Delta("", 1, "Hi", [1], 1), ZeroDivisionError(SECRET))
    answer = await http.post(CHAT, json={**HELLO, "stream": True})
    assert '"content":"Hi"' in answer.text
    assert json.loads(answer.text.split("\n\n")[-2].removeprefix("data: "))["error"]["code"] == "internal"
    assert "secret" not in answer.text
    while len(gateway.cancelled) < 1:
        await asyncio.sleep(0)


async def test_a_cancelled_answer_is_what_there_was(http: httpx.AsyncClient, gateway: Told) -> None:
    gateway.events = (Delta("", 1, "Hi", [1], 1), Finish("", 2, "cancelled"))
    [choice] = (await http.post(CHAT, json=HELLO)).json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hi", "cancelled")


async def test_signs_of_life_while_it_waits(
    http: httpx.AsyncClient, gateway: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    from playground.http.openai import answers

    monkeypatch.setattr(api, "FIRST_WORDS_WITHIN", 0.01)
    monkeypatch.setattr(answers, "ALIVE_EVERY", 0.02)
    gateway.events = (0.2, Delta("", 1, "Hi", [1], 1), Finish("", 2, "stop"))
    answer = await http.post(CHAT, json={**HELLO, "stream": True})
    opening, *alive, words, end, done, _ = answer.text.split("\n\n")
    assert '"role":"assistant"' in opening
    assert alive
    assert set(alive) == {": waiting"}
    assert ('"content":"Hi"' in words, '"stop"' in end, done) == (True, True, "data: [DONE]")
    gateway.events = (0.2, Finish("", 1, "error", error_code="prompt_too_long", error_message="too long"))
    answer = await http.post(CHAT, json={**HELLO, "stream": True})
    assert json.loads(answer.text.split("\n\n")[-2].removeprefix("data: "))["error"]["code"] == "prompt_too_long"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_key_that_is_revoked_ends_its_answers(
    http: httpx.AsyncClient, gateway: Told, chatter: User, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(registry, "LOOK_EVERY", 0.05)
    gateway.events = (Delta("", 1, "Hi", [1], 1), 60.0, Finish("", 2, "stop"))
    asking = asyncio.create_task(http.post(CHAT, json={**HELLO, "stream": stream}))
    while not len(calls.get_open_calls()):
        await asyncio.sleep(0.01)
    await database_sync_to_async(lambda: revoke(chatter.api_keys.get()))()
    answer = await asking
    assert answer.status_code == (200 if stream else 401)
    assert json.loads(answer.text.strip().split("\n\n")[-1].removeprefix("data: "))["error"]["code"] == "unauthorized"
    assert not len(calls.get_open_calls())
    while not gateway.cancelled:
        await asyncio.sleep(0.01)


async def test_the_end_of_the_server_is_told(http: httpx.AsyncClient, gateway: Told, settings: Any) -> None:
    settings.BATCHSCOPE = settings.BATCHSCOPE.model_copy(update={"drain_timeout": 0.3})
    gateway.events = (Delta("", 1, "Hi", [1], 1), 60.0, Finish("", 2, "stop"))
    asking = [asyncio.create_task(http.post(CHAT, json={**HELLO, "stream": stream})) for stream in (True, False)]
    while len(calls.get_open_calls()) < 2:
        await asyncio.sleep(0.01)
    await get_drain().run([calls.get_open_calls()])
    streamed, whole = await asyncio.gather(*asking)
    assert '"code":"draining"' in streamed.text
    assert (whole.status_code, error_of(whole)["code"], whole.headers["retry-after"]) == (503, "draining", "5")
    late = await http.post(CHAT, json=HELLO)
    assert (late.status_code, error_of(late)["code"], late.headers["retry-after"]) == (503, "draining", "5")


async def test_answers_under_way_end_before_the_server_does(http: httpx.AsyncClient, gateway: Told) -> None:
    gateway.events = (Delta("", 1, "Hi", [1], 1), 0.5, Finish("", 2, "stop"))
    asking = [asyncio.create_task(http.post(CHAT, json={**HELLO, "stream": stream})) for stream in (True, False)]
    while len(calls.get_open_calls()) < 2:
        await asyncio.sleep(0.01)
    draining = asyncio.create_task(get_drain().run([calls.get_open_calls()]))
    await asyncio.sleep(0)
    late = await http.post(CHAT, json=HELLO)
    assert (late.status_code, error_of(late)["code"], late.headers["retry-after"]) == (503, "draining", "30")
    streamed, whole = await asyncio.gather(*asking)
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert whole.json()["choices"][0]["message"]["content"] == "Hi"
    await draining


async def test_priority_is_for_staff(http: httpx.AsyncClient, gateway: Told, chatter: User) -> None:
    answer = await http.post(CHAT, json={**HELLO, "priority": 1})
    assert (answer.status_code, error_of(answer)["param"]) == (403, "priority")
    chatter.is_staff = True
    await chatter.asave()
    assert (await http.post(CHAT, json={**HELLO, "priority": 1})).status_code == 200


async def test_so_many_answers_and_no_more(http: httpx.AsyncClient, gateway: Told) -> None:
    answer = await http.post("/v1/completions", json={"prompt": ["a"] * 65, "n": 2})
    assert (answer.status_code, error_of(answer)["message"]) == (
        400,
        "65 prompts with n = 2 make 130 answers; at most 128 fit",
    )


async def test_the_document_knows_every_operation(http: httpx.AsyncClient) -> None:
    document = (await http.get("/v1/openapi.json")).json()
    assert set(document["paths"]) == {"/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{name}"}
    for path in document["paths"].values():
        for operation in path.values():
            assert operation["security"] == [{"ApiKey": []}]
            assert {"400", "401", "403", "404", "409", "413", "429", "500", "503"} < set(operation["responses"])
    text = json.dumps(document)
    named = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert named <= set(document["components"]["schemas"])
