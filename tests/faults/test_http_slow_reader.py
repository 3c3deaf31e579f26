"""Programs that stop reading a stream: what waits for them is bounded, others don't notice, and they are cut off."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.api_keys import http_client, make_key
from support.server import Server, scripted_model
from support.server_rows import rows, until

READERS = 2
TOKENS = 6000  # of an answer, some 300 bytes each as a chunk
BOUND = 1 << 20  # bytes of each reader


@pytest.fixture
def server(tmp_path: Path, make_server: Any) -> Server:
    """An engine that says more than fits between it and a reader who sleeps."""
    long = " ".join(["word"] * TOKENS)
    script = {"match": "long", "text": long}, {"match": "short", "text": "short and good"}
    server = make_server(model=scripted_model(tmp_path, step_ms=0, replies=list(script), default={"text": "x"}))
    server.start()
    return server


def web_memory(server: Server) -> int:
    status = Path(f"/proc/{server.children()['web']}/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def ask(server: Server, key: str) -> socket.socket:
    body = json.dumps(
        {
            "messages": [{"role": "user", "content": "long"}],
            "max_tokens": TOKENS,
            "stream": True,
        }
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", server.port))
    connection.settimeout(60)
    connection.sendall(head.encode() + body)
    return connection


def test_who_stops_reading(server: Server) -> None:
    key = make_key(server)
    with http_client(server, key) as http:
        short = {"messages": [{"role": "user", "content": "short"}], "stream": True}
        assert http.post("/v1/chat/completions", json=short).text.endswith("data: [DONE]\n\n")
        for _ in range(2):  # what answers of this length take anyhow
            with ThreadPoolExecutor(READERS) as readers:
                list(readers.map(_reads_on_to_the_end, [ask(server, key) for _ in range(READERS)]))
        before = web_memory(server)
        sleepers = [ask(server, key) for _ in range(READERS)]
        try:
            assert sleepers[0].recv(16)
            until(lambda: [state for state, _, _ in rows(server)].count("completed") == 1 + 3 * READERS, 90.0)
            assert web_memory(server) - before < READERS * BOUND
            assert http.post("/v1/chat/completions", json=short).text.endswith("data: [DONE]\n\n")
            _reads_on_to_the_end(sleepers[0])
        finally:
            for sleeper in sleepers:
                sleeper.close()
    assert "Traceback" not in server.output


def _reads_on_to_the_end(sleeper: socket.socket) -> None:
    """Nothing is missing for who wakes up in time."""
    with sleeper:
        read = bytearray()
        while b"data: [DONE]" not in read[-100:]:
            more = sleeper.recv(1 << 20)
            if not more:
                raise AssertionError(f"the stream ended: {bytes(read[-500:])!r}")
            read += more
    assert read.count(b'"content":" word"') + read.count(b'"content":"word"') == TOKENS


def test_health_is_well_meanwhile(server: Server) -> None:
    key = make_key(server)
    sleepers = [ask(server, key) for _ in range(READERS)]
    try:
        assert sleepers[0].recv(16)
        assert httpx.get(f"{server.base_url}/health", timeout=30.0).status_code == 200
    finally:
        for sleeper in sleepers:
            sleeper.close()
    until(lambda: all(state not in ("accepted", "running") for state, _, _ in rows(server)))
