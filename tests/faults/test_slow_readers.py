"""A WebSocket client that stops reading costs a bounded amount of memory, hurts nobody, and loses nothing by it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from support.raw_socket import CLOSE, TEXT, RawSocket, frame
from support.server import Answer, Chat, Server, scripted_model, serving

ANSWERS, TOKENS = 16, 300  # in frames: more than the kernel's buffers and the server's take together
STUCK = 2  # readers
ARENA = 1 << 20  # bytes that Python takes from the system at a time
TEXT_OF_ALL = "word " * 600
MIB = 1 << 20


@pytest.fixture(scope="module")
def quick(tmp_path_factory: Any) -> Iterator[Server]:
    """Answers as fast as the service can carry them."""
    replies = [{"match": f"story {n} please", "text": f"Story {n}: {'word, ' * 60}"} for n in range(4)]
    script = {"step_ms": 0, "replies": replies, "default": {"text": TEXT_OF_ALL}}
    with serving(model=scripted_model(tmp_path_factory.mktemp("quick"), **script)) as server:
        yield server


@asynccontextmanager
async def small_chat(server: Server) -> AsyncIterator[Chat]:
    """A client with a small receive buffer, which reads only what it is asked to."""
    plug = socket.socket()
    plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
    plug.connect(("127.0.0.1", server.port))
    async with server.chat(sock=plug, max_queue=1, ping_interval=None) as chat:
        yield chat


async def ask_for_much(chat: Chat) -> None:
    params = {"n": ANSWERS, "max_tokens": TOKENS}
    await chat.send(type="generate", messages=[{"role": "user", "content": "say much"}], params=params)


async def read_all(chat: Chat) -> tuple[dict[str, Answer], int]:
    """All answers, and how many frames stood for several deltas."""
    answers: dict[str, Answer] = {}
    joined = 0
    while len(answers) < ANSWERS or not all(answer.finished for answer in answers.values()):
        message = await chat.receive()
        if request_id := message.get("request_id"):
            answers.setdefault(request_id, Answer()).take(message)
            joined += "first_seq" in message
    return answers, joined


async def test_memory_stays_bounded_and_every_answer_is_whole(quick: Server) -> None:
    server = quick
    async with AsyncExitStack() as readers:  # the same load, read: what it takes once is taken
        chats = [await readers.enter_async_context(server.chat()) for _ in range(STUCK)]
        for chat in chats:
            await ask_for_much(chat)
        assert [joined for _, joined in await asyncio.gather(*map(read_all, chats))] == [0] * STUCK
    before = server.memory("web")
    async with AsyncExitStack() as readers:
        stuck = [await readers.enter_async_context(small_chat(server)) for _ in range(STUCK)]
        neighbour = await readers.enter_async_context(server.chat())
        for chat in stuck:
            await ask_for_much(chat)
        most = 0
        for n in range(1, 4):  # while others are served
            request_id = await neighbour.generate(f"story {n} please", max_tokens=600, temperature=0)
            assert (await neighbour.read(request_id, Answer())).text.startswith(f"Story {n}: word, word")
            most = max(most, server.memory("web") - before)
        assert most <= STUCK * MIB + ARENA  # unread and unbounded it would be all that the engine can say
        for answers, joined in await asyncio.gather(*map(read_all, stuck)):
            assert joined > 0
            assert all(answer.seq > TOKENS // 2 and answer.text in TEXT_OF_ALL for answer in answers.values())


@pytest.mark.slow
async def test_after_half_a_minute_it_is_closed_and_its_requests_are_given_up(quick: Server) -> None:
    server = quick
    async with small_chat(server) as stuck:
        for _ in range(8):
            await ask_for_much(stuck)
        await asyncio.sleep(45)
        with pytest.raises(Exception, match="1013") as closed:
            await read_all(stuck)
        assert "resume" in closed.value.rcvd.reason
    async with server.chat() as chat:  # nothing is left that would keep it from an answer
        request_id = await chat.generate("story 1 please", max_tokens=5)
        await chat.read(request_id, Answer())


def test_a_flood_that_is_not_read_back_is_bounded_too(lasting_server: Server) -> None:
    """Errors and pongs wait for the reader as answers do, and meanwhile nothing more is read of it."""
    server = lasting_server
    cookie = "; ".join(f"{key}={value}" for key, value in server.cookies.items())
    headers = {"Cookie": cookie, "Origin": server.base_url}
    nonsense = frame(TEXT, json.dumps({"type": "fly", "ref": "x" * 100}).encode()) * 100
    with RawSocket(server.port, "/ws/chat/", headers, receive_buffer=32 << 10, patience=5) as raw:
        raw.receive()
        before = server.memory("web")
        sent = 0
        try:
            while sent < 64 * MIB:
                raw.send(nonsense)
                sent += len(nonsense)
        except TimeoutError:  # it is not read any further
            pass
        assert sent < 64 * MIB
        assert server.memory("web") - before <= 4 * MIB
        assert server.get("/health").status_code == 200
    with RawSocket(server.port, "/ws/chat/", headers) as raw:  # others are served
        raw.receive()
        raw.send(frame(CLOSE, b"\x03\xe8"))
        assert raw.close_code() == 1000
