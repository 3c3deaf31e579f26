"""Programs that go away: what they asked for ends at once, wherever it was, and nothing is left of it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from support.api_keys import http_client, make_key
from support.server import Server
from support.server_rows import rows, until


@pytest.fixture(scope="module")
def key(lasting_server: Server) -> str:
    return make_key(lasting_server, "generate", "metrics")


@pytest.fixture
def http(lasting_server: Server, key: str) -> Iterator[httpx.Client]:
    with http_client(lasting_server, key) as http:
        yield http


def call(server: Server, key: str, **fields: Any) -> socket.socket:
    """A connection on which a chat completion was asked for."""
    body = json.dumps({"temperature": 0, **fields}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    connection.sendall(head.encode() + body)
    return connection


def story(n: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"story {n} please"}]


def read_until(connection: socket.socket, words: bytes, times: int = 1) -> bytes:
    read = b""
    while read.count(words) < times:
        more = connection.recv(65536)
        if not more:
            raise AssertionError(f"the connection ended: {read!r}")
        read += more
    return read


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_who_goes_while_it_runs(lasting_server: Server, key: str, stream: bool, n: int) -> None:
    before = len(rows(lasting_server))
    connection = call(lasting_server, key, messages=story(1), stream=stream, n=n, max_tokens=240)
    if stream:
        read_until(connection, b"data: {", 5)
    else:
        until(lambda: [row[0] for row in rows(lasting_server)[before:]] == n * ["running"])
    connection.close()
    until(lambda: [row[:2] for row in rows(lasting_server)[before:]] == n * [("cancelled", "cancelled")])
    assert all(tokens < 200 for _, _, tokens in rows(lasting_server)[before:])


def test_who_goes_while_it_waits_for_a_seat(make_server: Any, story: Callable[[int], str]) -> None:
    server = make_server(max_num_seqs="1")
    server.start()
    key = make_key(server)
    first = call(server, key, messages=[{"role": "user", "content": "story 1 please"}], stream=True, max_tokens=400)
    read_until(first, b"data: {", 5)
    second = call(server, key, messages=[{"role": "user", "content": "story 2 please"}], stream=True, max_tokens=400)
    until(lambda: len(rows(server)) == 2)
    second.close()
    until(lambda: rows(server)[1] == ("cancelled", "cancelled", 0))
    rest = read_until(first, b"[DONE]")
    assert b'"finish_reason":"stop"' in rest
    first.close()


def test_who_goes_in_the_middle_of_a_long_prompt(make_server: Any) -> None:
    server = make_server(prefill_chunk="16", max_num_batched_tokens="32", max_num_seqs="8")
    server.start()
    key = make_key(server)
    connection = call(server, key, messages=[{"role": "user", "content": "long " * 1500}], max_tokens=8)
    until(lambda: len(rows(server)) == 1)
    connection.close()
    until(lambda: rows(server)[0][:2] == ("cancelled", "cancelled"))


def test_others_are_as_before(lasting_server: Server, key: str, http: httpx.Client, story: Any) -> None:
    """One reads while many come and go."""
    before = len(rows(lasting_server))
    leaving = threading.Event()

    def come_and_go() -> None:
        while not leaving.wait(0.05):
            call(lasting_server, key, messages=[{"role": "user", "content": "story 3 please"}], stream=True).close()

    crowd = threading.Thread(target=come_and_go)
    crowd.start()
    try:
        body = {"messages": [{"role": "user", "content": "story 4 please"}], "max_tokens": 400}
        answer = http.post("/v1/chat/completions", json=body)
    finally:
        leaving.set()
        crowd.join()
    assert answer.json()["choices"][0]["message"]["content"] == story(4)
    until(lambda: all(state not in ("accepted", "running") for state, _, _ in rows(lasting_server)))
    assert sorted(state for state, _, _ in rows(lasting_server)[before:])[-2:] != ["completed", "completed"]
    assert "Traceback" not in lasting_server.output
