"""The service on PostgreSQL, where its server is installed: two web processes, connections that are cut, a database
that is away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support import postgres
from support.api_keys import http_client, make_key
from support.postgres import PostgresServer
from support.server import ROOT, Server
from support.server_rows import until
from support.webs import second_web

pytestmark = pytest.mark.skipif(
    postgres.binaries() is None, reason="there is no PostgreSQL server here; Debian's package is called postgresql"
)
PATH = "/v1/chat/completions"
LIMIT, AT_ONCE = 5, 30
# What knows only rows, and may go otherwise on another database.
OF_ROWS = [
    f"tests/playground/{name}.py"
    for name in ("test_accepts_at_once", "test_params_kept", "openai/test_idempotent_rows")
]


def asks(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 600, **fields}


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    with postgres.private() as running:
        yield running


def test_rows_are_kept_as_on_sqlite(database: PostgresServer) -> None:
    # Without the plugins that these tests don't need, which take longer to load than the tests to run.
    env = {**os.environ, "TEST_DATABASE_URL": database.url("rows"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    plugins = [f"-p{name}" for name in ("pytest_django.plugin", "pytest_asyncio.plugin", "pytest_timeout")]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "-p", "no:cacheprovider", "--reuse-db", *OF_ROWS]
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stdout + run.stderr
    with database.connection("test_rows"):  # that is where they were
        pass


async def let_in(addresses: tuple[str, ...], key: str) -> list[int]:
    """The status of each of AT_ONCE calls, by turns to each address, while no answer ends."""
    all_told, told = asyncio.Event(), []
    headers = {"Authorization": f"Bearer {key}"}
    limits = httpx.Limits(max_connections=AT_ONCE)

    async def ask(http: httpx.AsyncClient, address: str) -> None:
        body = asks("story 1 please", stream=True)
        async with http.stream("POST", address + PATH, json=body, headers=headers) as answer:
            told.append(answer.status_code)
            if len(told) == AT_ONCE:
                all_told.set()
            await all_told.wait()

    async with httpx.AsyncClient(timeout=60, limits=limits) as http:
        await asyncio.gather(*(ask(http, addresses[n % len(addresses)]) for n in range(AT_ONCE)))
    return sorted(told)


@pytest.mark.slow
async def test_the_service_on_it(database: PostgresServer, make_server: Any, story: Any) -> None:
    url = database.make_database("service")
    server: Server = make_server(database_url=url, queue_limit=str(LIMIT), resume_grace="0").start()
    key = make_key(server)
    with second_web(server) as other, http_client(server, key) as http:
        # Together they let in no more than one would.
        assert await let_in((server.base_url, other), key) == [200] * LIMIT + [429] * (AT_ONCE - LIMIT)
        until(lambda: unfinished(database) == 0)

        # Of connections that were cut nobody hears.
        with database.connection("service") as connection:
            everybody = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'service'"
            connection.execute(f"{everybody} AND pid <> pg_backend_pid()")
        for address in (server.base_url, other):
            assert http.post(address + PATH, json=asks("hello")).status_code == 200

        # While there is no database nothing is accepted, and what runs goes on.
        with streaming(server, key) as (begun, text):
            assert begun.wait(20)
            database.stop()
            assert http.post(PATH, json=asks("hello")).status_code == 503
        assert "".join(text) == story(2)
        database.start()
        until(lambda: http.post(PATH, json=asks("hello")).status_code == 200)
        until(lambda: unfinished(database) == 0)


@contextlib.contextmanager
def streaming(server: Server, key: str) -> Iterator[tuple[threading.Event, list[str]]]:
    """A story being read: an event for its first word, and its words, which are all there in the end."""
    begun, text = threading.Event(), []

    def read() -> None:
        body = asks("story 2 please", stream=True, temperature=0)
        with http_client(server, key) as http, http.stream("POST", PATH, json=body) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    [choice] = json.loads(line.removeprefix("data: "))["choices"]
                    text.append(choice["delta"].get("content") or "")
                    begun.set()

    thread = threading.Thread(target=read)
    thread.start()
    yield begun, text
    thread.join(60)


def unfinished(database: PostgresServer) -> int:
    query = "SELECT count(*) FROM playground_inferencerequest WHERE state IN ('accepted', 'running')"
    with database.connection("service") as connection:
        return connection.execute(query).fetchone()[0]
