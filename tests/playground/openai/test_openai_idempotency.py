"""The same call made again under its Idempotency-Key: one run, one answer."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import httpx
from support.api_keys import http_client, make_key
from support.server import Server
from support.server_rows import rows, until

PATH = "/v1/chat/completions"
COUNT = "one two three four five six seven"


def body(text: str = "count", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def new_key() -> dict[str, str]:
    return {"Idempotency-Key": uuid.uuid4().hex}


async def test_a_hundred_at_once_are_one_run(server: Server, key: str) -> None:
    before = len(rows(server))
    headers = {"Authorization": f"Bearer {key}", **new_key()}
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(base_url=server.base_url, headers=headers, timeout=60.0, limits=limits) as http:
        answers = await asyncio.gather(*(http.post(PATH, json=body(stream=True)) for _ in range(100)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({said(answer) for answer in answers}) == 1
    assert len(rows(server)) == before + 1


def said(answer: httpx.Response) -> str:
    """All of a stream but its timing, whose last part each reader has of their own."""
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    chunks = [json.loads(line) for line in lines[:-1]]
    return json.dumps([{name: chunk[name] for name in chunk if name != "timing"} for chunk in chunks]) + lines[-1]


def _id_of(stream: str) -> str:
    return json.loads(stream.split("\n", 1)[0].removeprefix("data: "))["id"]


def test_after_the_end_the_same_answer_again(ask: Any) -> None:
    headers = new_key()
    first = ask("count", headers, seed=7, n=2)
    again = ask("count", headers, seed=7, n=2)
    assert first.json()["id"] == again.json()["id"]
    assert [choice["message"] for choice in first.json()["choices"]] == [
        choice["message"] for choice in again.json()["choices"]
    ]
    for field in ("usage", "created", "model", "system_fingerprint"):
        assert first.json()[field] == again.json()[field]
    assert ask("count", new_key(), seed=7, n=2).json()["id"] != first.json()["id"]


def test_streams_too(ask: Any) -> None:
    headers = new_key()
    first = ask("count", headers, stream=True, stream_options={"include_usage": True})
    again = ask("count", headers, stream=True, stream_options={"include_usage": True})
    assert said(first) == said(again)
    assert first.text.endswith("data: [DONE]\n\n")


def test_another_body_is_a_conflict(ask: Any) -> None:
    headers = new_key()
    assert ask("count", headers).status_code == 200
    for other in (ask("hello", headers), ask("count", headers, stream=True), ask("count", headers, seed=1)):
        assert other.status_code == 409
        assert other.json()["error"]["code"] == "conflict"
        assert other.headers["x-should-retry"] == "false"


def test_the_order_of_fields_does_not_matter(http: httpx.Client) -> None:
    headers = new_key()
    first = http.post(PATH, headers=headers, json={**body(), "seed": 1})
    again = http.post(PATH, headers=headers, json={"seed": 1, **body()})
    assert first.json()["id"] == again.json()["id"]


def test_keys_of_others_are_other_keys(ask: Any, server: Server, anns_key: str) -> None:
    """So are those of another program of one's own."""
    headers = new_key()
    mine = ask("count", headers).json()["id"]
    for other in (anns_key, make_key(server)):
        with http_client(server, other) as http:
            assert http.post(PATH, json=body("hello"), headers=headers).status_code == 200
            assert http.post(PATH, json=body("hello"), headers=headers).json()["id"] != mine


def test_who_comes_again_at_once_finds_it_running(http: httpx.Client, ask: Any) -> None:
    headers, told = new_key(), {"max_tokens": 150, "stream": True}
    with http.stream("POST", PATH, headers=headers, json=body("tell me a long story", **told)) as answer:
        first = next(answer.iter_lines())
    again = ask("tell me a long story", headers, **told)
    assert again.text.startswith(first)
    assert '"finish_reason":"length"' in again.text


def test_what_was_cancelled_is_made_anew(http: httpx.Client, ask: Any, server: Server) -> None:
    headers, told = new_key(), {"max_tokens": 700, "stream": True}
    with http.stream("POST", PATH, headers=headers, json=body("tell me a long story", **told)) as answer:
        first = _id_of(next(answer.iter_lines()))
    until(lambda: rows(server)[-1][0] == "cancelled")
    again = ask("tell me a long story", headers, **told)
    assert _id_of(again.text) != first
    assert '"finish_reason":"length"' in again.text


def test_a_key_must_be_of_a_sensible_length(ask: Any) -> None:
    answer = ask("count", {"Idempotency-Key": "k" * 256})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_message")
    assert "256 characters" in answer.json()["error"]["message"]
