"""Bodies of every kind at the API: each has an answer that the document knows, and nobody else notices.

The default run sends a few hundred, the slow one 10,000.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
import schemathesis.specs.openapi.schemas  # now: Python 3.11 can't parse modules well beside busy threads
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.core.transport import Response
from schemathesis.schemas import APIOperation
from support.api_keys import http_client
from support.server import Server

LONG = " ".join(f"word {n}," for n in range(200))
PATHS = ("/v1/chat/completions", "/v1/completions")
CODES = {400, 404, 413}
QUIET = tuple(HealthCheck)  # what is slow here is the service

numbers = st.one_of(
    st.sampled_from([0, -1, 1, 2**31, 2**63, -(2**63), 1e-6, 1e308, 0.7]),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
)
words = st.one_of(st.sampled_from(["", " ", "<|im_start|>", "\x00", "é", "👋", "a" * 300]), st.text(max_size=40))
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, words),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(words, inner, max_size=4)),
    max_leaves=12,
)
parts = st.fixed_dictionaries(
    {"type": st.one_of(st.just("text"), words)}, optional={"text": st.one_of(words, anything)}
)
messages = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {
                "role": st.one_of(st.sampled_from(["system", "user", "assistant", "developer", "tool"]), words),
                "content": st.one_of(words, st.lists(parts, max_size=3), anything),
            }
        ),
        anything,
    ),
    max_size=4,
)
prompts = st.one_of(words, st.lists(words, max_size=3), st.lists(st.integers(0, 60_000), max_size=5), anything)
FIELDS = {
    "model": st.one_of(st.just("script"), words, anything),
    "max_tokens": st.one_of(st.integers(1, 8), anything),
    "max_completion_tokens": st.one_of(st.integers(1, 8), anything),
    "stream": st.one_of(st.booleans(), anything),
    "stream_options": st.one_of(st.just({"include_usage": True}), anything),
    "n": st.one_of(st.integers(1, 3), anything),
    "logprobs": st.one_of(st.booleans(), st.integers(0, 25), anything),
    "top_logprobs": st.one_of(st.integers(0, 25), anything),
    "logit_bias": st.one_of(st.dictionaries(st.integers(-9, 60_000).map(str), st.floats(-200, 200)), anything),
    "response_format": st.one_of(
        st.fixed_dictionaries({"type": st.sampled_from(["text", "json_object", "json_schema", "regex"])}), anything
    ),
    "stop": st.one_of(words, st.lists(words, max_size=3), anything),
    **{
        name: st.one_of(numbers, anything)
        for name in (
            *("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty"),
            *("repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos", "priority", "tools", "user", "echo"),
        )
    },
}
bodies = st.one_of(
    st.fixed_dictionaries({"messages": messages}, optional=FIELDS),
    st.fixed_dictionaries({"prompt": prompts}, optional=FIELDS),
    st.fixed_dictionaries({}, optional={**FIELDS, "messages": messages, "prompt": prompts}),
    st.dictionaries(words, anything, max_size=5),
).map(lambda body: json.dumps(body).encode())
raw = st.one_of(bodies, st.binary(max_size=200), anything.map(lambda value: json.dumps(value).encode()))
torn = st.builds(lambda body, at, more: body[:at] + more, bodies, st.integers(0, 400), st.binary(max_size=3))


@pytest.fixture
def neighbour(server: Server, key: str) -> Iterator[Any]:
    """Somebody who reads a long story all the while, again and again."""
    done, told = threading.Event(), set[str]()

    def read() -> None:
        body = {"messages": [{"role": "user", "content": "tell me a long story"}], "temperature": 0, "max_tokens": 150}
        with http_client(server, key) as http:
            while not done.is_set():
                answer = http.post(PATHS[0], json=body)
                told.add(answer.json()["choices"][0]["message"]["content"] if answer.is_success else answer.text)

    reader = threading.Thread(target=read)
    reader.start()
    engine = server.children()["engine"]
    yield
    done.set()
    reader.join()
    [text] = told
    assert LONG.startswith(text)
    assert len(text) > 150
    assert server.children()["engine"] == engine
    assert "Traceback" not in server.output
    assert server.get("/health").status_code == 200


def _check(http: httpx.Client, path: str, body: bytes) -> None:
    answer = http.post(path, content=body, headers={"Content-Type": "application/json"})
    if answer.status_code == 200:
        if answer.headers["content-type"].startswith("text/event-stream"):
            assert answer.text.endswith("data: [DONE]\n\n") or '"error":' in answer.text.split("\n\n")[-2]
        else:
            assert answer.json()["choices"]
        return
    assert answer.status_code in CODES, (answer.status_code, answer.text, body)
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "Traceback" not in answer.text


def _fuzz(http: httpx.Client, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=QUIET)
    @given(path=st.sampled_from(PATHS), body=st.one_of(raw, torn))
    def run(path: str, body: bytes) -> None:
        _check(http, path, body)

    run()


def test_bodies_of_every_kind(neighbour: None, http: httpx.Client) -> None:
    _fuzz(http, 250)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_bodies(neighbour: None, http: httpx.Client) -> None:
    _fuzz(http, 10_000)


def _document(http: httpx.Client, operation: APIOperation, examples: int) -> None:
    """Calls as the document has them, and some as it has them not; answers as it says."""

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=QUIET)
    @given(case=operation.as_strategy())
    def run(case: schemathesis.Case) -> None:
        body = case.body if isinstance(case.body, dict) else {}
        short = {name: 4 for name in ("max_tokens", "max_completion_tokens") if isinstance(body.get(name), int)}
        answer = http.request(case.method, case.formatted_path, json={**body, **short})
        assert answer.status_code < 500, answer.text
        if not answer.headers["content-type"].startswith("text/event-stream"):
            operation.validate_response(Response.from_any(answer))

    run()


@pytest.mark.parametrize("path", PATHS)
def test_calls_as_the_document_has_them(neighbour: None, http: httpx.Client, path: str) -> None:
    document = schemathesis.openapi.from_dict(http.get("/v1/openapi.json").json())
    _document(http, document[path]["POST"], 60)
