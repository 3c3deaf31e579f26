"""Programs that go away: what they asked for ends at once, wherever it was, and nothing is left of it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
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


def asks(n: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"story {n} please"}]


def gauge(server: Server, key: str, name: str) -> float:
    """A metric, summed over its labels."""
    with http_client(server, key) as http:
        families = text_string_to_metric_families(http.get("/metrics").raise_for_status().text)
    found = [sample for family in families for sample in family.samples if sample.name == f"batchscope:{name}"]
    return sum(sample.value for sample in found)


def is_idle(server: Server, key: str) -> bool:
    """Nothing runs, nothing waits, and no request holds a block."""
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    return all(gauge(server, key, name) == 0 for name in names)


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
    connection = call(lasting_server, key, messages=asks(1), stream=stream, n=n, max_tokens=240)
    if stream:
        read_until(connection, b"data: {", 5)
    else:
        until(lambda: [row[0] for row in rows(lasting_server)[before:]] == n * ["running"])
    connection.close()
    until(lambda: [row[:2] for row in rows(lasting_server)[before:]] == n * [("cancelled", "cancelled")])
    assert all(tokens < 200 for _, _, tokens in rows(lasting_server)[before:])
    until(lambda: is_idle(lasting_server, key))


def test_who_goes_while_it_waits_for_a_seat(make_server: Any) -> None:
    server = make_server(max_num_seqs="1")
    server.start()
    key = make_key(server, "generate", "metrics")
    first = call(server, key, messages=asks(1), stream=True, max_tokens=400)
    read_until(first, b"data: {", 5)
    second = call(server, key, messages=asks(2), stream=True, max_tokens=400)
    until(lambda: len(rows(server)) == 2)
    second.close()
    until(lambda: rows(server)[1] == ("cancelled", "cancelled", 0))
    rest = read_until(first, b"[DONE]")
    assert b'"finish_reason":"stop"' in rest
    first.close()
    until(lambda: is_idle(server, key))


def test_who_goes_in_the_middle_of_a_long_prompt(make_server: Any) -> None:
    server = make_server(prefill_chunk="16", max_num_batched_tokens="32", max_num_seqs="8")
    server.start()
    key = make_key(server, "generate", "metrics")
    connection = call(server, key, messages=[{"role": "user", "content": "long " * 1500}], max_tokens=8)
    until(lambda: len(rows(server)) == 1)
    connection.close()
    until(lambda: rows(server)[0][:2] == ("cancelled", "cancelled"))
    until(lambda: is_idle(server, key))


def test_who_goes_while_it_is_preempted(make_server: Any) -> None:
    """The cache has room for one and a half of the two."""
    server = make_server(kv_blocks="24", max_num_seqs="4")
    server.start()
    key = make_key(server, "generate", "metrics")
    first = call(server, key, messages=asks(1), stream=True, max_tokens=230)
    read_until(first, b"data: {", 5)
    second = call(server, key, messages=asks(2), stream=True, max_tokens=230)
    until(lambda: gauge(server, key, "num_preemptions_total") > 0)
    second.close()
    until(lambda: rows(server)[1][:2] == ("cancelled", "cancelled"))
    assert b'"finish_reason":"length"' in read_until(first, b"[DONE]")
    first.close()
    until(lambda: is_idle(server, key))


def test_others_are_as_before(lasting_server: Server, key: str, http: httpx.Client, story: Any) -> None:
    """One reads while many come and go."""
    before = len(rows(lasting_server))
    leaving = threading.Event()

    def come_and_go() -> None:
        while not leaving.is_set():
            with call(lasting_server, key, messages=asks(3), stream=True) as connection:
                read_until(connection, b"data: {", 2)

    crowd = threading.Thread(target=come_and_go)
    crowd.start()
    try:
        body = {"messages": asks(4), "max_tokens": 400}
        answer = http.post("/v1/chat/completions", json=body)
    finally:
        leaving.set()
        crowd.join()
    assert answer.json()["choices"][0]["message"]["content"] == story(4)
    until(lambda: all(state not in ("accepted", "running") for state, _, _ in rows(lasting_server)))
    assert [state for state, _, _ in rows(lasting_server)[before:]].count("completed") == 1
    until(lambda: is_idle(lasting_server, key))
    assert "Traceback" not in lasting_server.output
