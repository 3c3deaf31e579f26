"""A whole service with the scripted model, and programs that come to it with keys."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from support.api_keys import http_client, make_account, make_key, openai_client
from support.server import Server, scripted_model, serving

LONG = " ".join(f"word {n}," for n in range(200))
SCRIPT = {
    "step_ms": 4,
    "replies": [
        {"match": "tell me a long story", "text": LONG},
        {"match": "count", "text": "one two three four five six seven"},
        {"match": "in characters", "text": "👋 삼겹살 ďábel"},
    ],
    "default": {"text": "Nothing to say."},
}


@pytest.fixture(scope="session")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("openai")
    return scripted_model(folder, **SCRIPT)


@pytest.fixture(scope="session")
def server(script: str) -> Iterator[Server]:
    with serving(model=script, user_queue_limit="3") as server:
        make_account(server, "ann")
        yield server


@pytest.fixture(scope="session")
def key(server: Server) -> str:
    """Of the local admin, who has no limits of an account."""
    return make_key(server)


@pytest.fixture(scope="session")
def anns_key(server: Server) -> str:
    """Of an account with limits."""
    return make_key(server, user="ann")


@pytest.fixture
def make_client(server: Server) -> Iterator[Callable[..., openai.OpenAI]]:
    """From a key and options to OpenAI's client with it."""
    with contextlib.ExitStack() as clients:
        yield lambda key, **options: clients.enter_context(openai_client(server, key, **options))


@pytest.fixture
def client(make_client: Callable[..., openai.OpenAI], key: str) -> openai.OpenAI:
    return make_client(key)


@pytest.fixture
def http(server: Server, key: str) -> Iterator[httpx.Client]:
    with http_client(server, key) as http:
        yield http


@pytest.fixture
def ask(http: httpx.Client) -> Any:
    """A chat completion as bare HTTP."""

    def ask(text: str = "hello", headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": text}], **fields}
        return http.post("/v1/chat/completions", json=body, headers=headers)

    return ask
