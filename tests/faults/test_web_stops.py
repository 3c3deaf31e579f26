"""A web process that is told to stop says so on every socket before it goes; nobody is cut off without a word."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import websockets
from support.raw_socket import RawSocket
from support.server import Answer, Chat, Server


async def last_words(chat: Chat, answer: Answer) -> tuple[bool, bool, int, str]:
    """Whether it is told before the close, and whether an answer ends; the close's code and reason."""
    kinds = []

    async def listen() -> None:
        while True:
            message = await chat.receive()
            kinds.append(message["type"])
            if message["type"] == "delta":
                answer.take(message)

    with pytest.raises(websockets.ConnectionClosed) as closed:
        await listen()
    assert closed.value.rcvd is not None, "cut off without a word"
    return "draining" in kinds, "finished" in kinds, closed.value.rcvd.code, closed.value.rcvd.reason


@pytest.mark.parametrize("whom", ["web", "serve"])
async def test_at_the_end_of_its_time_it_closes_every_socket_with_a_word(
    whom: str, make_server: Any, story: Any
) -> None:
    """The time of the web runs out; that of serve is ended by a second signal."""
    server = make_server(drain_timeout="0.5" if whom == "web" else "600").start()
    server.login()
    answer = Answer()
    async with server.chat() as streaming, server.chat() as idle, server.chat("/ws/scheduler/") as viewer:
        request_id = await streaming.generate("story 1 please", max_tokens=600, temperature=0)
        while answer.seq < 5:
            answer.take(await streaming.receive())
        await viewer.receive_type("snapshot")
        os.kill(server.children()["web"] if whom == "web" else server.process.pid, signal.SIGTERM)
        told = [await last_words(chat, Answer()) for chat in (idle, viewer)]
        if whom == "serve":
            server.process.terminate()
        told.append(await last_words(streaming, answer))
    assert told == [(True, False, 1012, "this server stops; connect again and resume your requests")] * 3
    if whom == "serve":
        assert server.wait() == 0
        return
    async with server.chat(open_timeout=30) as chat:  # serve has started another one
        await chat.send(type="resume", request_id=request_id, after_seq=answer.seq)
        assert (await chat.read(request_id, answer)).text == story(1)


def test_a_client_that_does_not_answer_keeps_nobody_waiting(serve_process: Server) -> None:
    server = serve_process
    cookie = "; ".join(f"{key}={value}" for key, value in server.cookies.items())
    with RawSocket(server.port, "/ws/chat/", {"Cookie": cookie, "Origin": server.base_url}) as raw:
        assert raw.status == 101
        server.process.terminate()
        assert server.wait(20) == 0
        assert raw.close_code() == 1012
    assert "web_killed" not in server.output
