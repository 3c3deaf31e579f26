"""Bodies that are too large, or not what their headers say: answered before any work, and nobody else waits for it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.api_keys import http_client, make_key
from support.server import Server

LIMIT = 1 << 20
MEGABYTE = 1_000_000
PIECE = b"x" * 65536


@pytest.fixture(scope="module")
def key(lasting_server: Server) -> str:
    return make_key(lasting_server)


@pytest.fixture
def http(lasting_server: Server, key: str) -> Iterator[httpx.Client]:
    with http_client(lasting_server, key) as http:
        yield http


def web_memory(server: Server) -> int:
    """Peak of what the web process has had in memory, in bytes."""
    status = Path(f"/proc/{server.children()['web']}/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def pieces(size: int) -> Iterator[bytes]:
    for _ in range(size // len(PIECE) + 1):
        yield PIECE


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/conversations/", "/v1/nowhere"])
@pytest.mark.parametrize("megabytes", [2, 10, 50])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit(http: httpx.Client, path: str, megabytes: int, chunked: bool) -> None:
    size = megabytes * MEGABYTE
    answer = http.post(path, content=pieces(size) if chunked else b"x" * size)
    assert answer.status_code == 413
    error = answer.json()["error"]
    assert (error["code"], error["type"], error["param"]) == ("too_large", "invalid_request_error", None)
    assert str(LIMIT) in error["message"]


def test_a_body_of_the_limit_is_read(http: httpx.Client) -> None:
    body = b'{"prompt": "' + b"x" * (LIMIT - 14) + b'"}'
    assert len(body) == LIMIT
    assert http.post("/v1/completions", content=body).json()["error"]["code"] == "prompt_too_long"
    assert http.post("/v1/completions", content=body + b" ").status_code == 413


def test_nothing_of_it_is_kept(lasting_server: Server, http: httpx.Client) -> None:
    before = web_memory(lasting_server)
    for _ in range(3):
        assert http.post("/v1/chat/completions", content=b"x" * (50 * MEGABYTE)).status_code == 413
        assert http.post("/v1/chat/completions", content=pieces(50 * MEGABYTE)).status_code == 413
    assert web_memory(lasting_server) - before < 8 << 20


def test_a_stream_beside_it_does_not_stir(lasting_server: Server, http: httpx.Client, story: Any, key: str) -> None:
    sending = threading.Event()

    def send() -> None:
        with http_client(lasting_server, key) as other:
            while not sending.wait(0.05):
                other.post("/v1/chat/completions", content=pieces(20 * MEGABYTE))

    crowd = threading.Thread(target=send)
    crowd.start()
    try:
        body = {"messages": [{"role": "user", "content": "story 5 please"}], "temperature": 0, "max_tokens": 400}
        answer = http.post("/v1/chat/completions", json=body)
    finally:
        sending.set()
        crowd.join()
    assert answer.json()["choices"][0]["message"]["content"] == story(5)


@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "multipart/form-data", "multipart/form-data; boundary=b", "a/b"]
)
def test_a_body_is_no_form_whatever_it_calls_itself(http: httpx.Client, kind: str) -> None:
    """Reading a megabyte as a form would take seconds, in which no stream goes on."""
    answer = http.post("/v1/completions", content=b'{"prompt": "story 5 please"}', headers={"Content-Type": kind})
    assert answer.status_code == 200
    answer = http.post("/v1/completions", content=b"--b\r\nno form", headers={"Content-Type": kind})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_json")


def test_a_client_does_not_say_where_the_service_is(lasting_server: Server) -> None:
    for root in (b"/x", b"\xff"):
        header = {"Daphne-Root-Path": root}
        assert httpx.get(f"{lasting_server.base_url}/x/health/live", headers=header).status_code == 404
        assert httpx.get(f"{lasting_server.base_url}/health/live", headers=header).status_code == 200


LENGTHS = {
    "more than is sent": (b"Content-Length: 100\r\n\r\n{}", b""),
    "less than is sent": (b"Content-Length: 2\r\n\r\n{}and more", b"HTTP/1.1 400"),
    "none": (b"\r\n", b"HTTP/1.1 400"),
    "negative": (b"Content-Length: -2\r\n\r\n{}", b"HTTP/1.1 400"),
    "no number": (b"Content-Length: two\r\n\r\n{}", b"HTTP/1.1 400"),
    "two of them": (b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ", b"HTTP/1.1 400"),
    "chunked, too": (b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", b"HTTP/1.1 400"),
    "chunks without a size": (b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"HTTP/1.1 400"),
    "more than a number holds": (b"Content-Length: " + b"9" * 40 + b"\r\n\r\n{}", b"HTTP/1.1 413"),
}


@pytest.mark.parametrize("what", LENGTHS)
def test_wrong_lengths(lasting_server: Server, key: str, what: str) -> None:
    sent, answer = LENGTHS[what]
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + key.encode() + b"\r\n"
    with socket.create_connection(("127.0.0.1", lasting_server.port), timeout=30) as connection:
        connection.sendall(head + sent)
        if answer:
            assert connection.recv(65536).startswith(answer)
        else:  # it may still come
            connection.settimeout(0.5)
            with pytest.raises(TimeoutError):
                connection.recv(65536)
    assert lasting_server.get("/health/live").status_code == 200


def test_an_answer_comes_before_the_body_is_there(lasting_server: Server) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", lasting_server.port), timeout=30) as connection:
        connection.sendall(head + b"x" * 10)
        answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 413")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_large"
        with pytest.raises(ConnectionResetError):  # and whoever sends no more is cut off
            connection.recv(65536)
