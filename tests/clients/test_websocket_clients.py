"""The two clients of the docs against a real server: a whole answer, a connection that breaks, Ctrl-C, a wrong key."""

from __future__ import annotations

import json
import signal
from typing import Any

from support.described import check_frame
from support.proxy import Proxy
from support.server import Server
from websockets import ServerConnection, serve

LONG = " ".join(f"Word {n}." for n in range(60))


async def test_an_answer_is_printed_as_it_comes(run_client: Any, server: Server) -> None:
    program = await run_client("long", server.port)
    await program.print_more_than(20)
    assert len(program.printed) < len(LONG)  # there is more to come
    assert await program.end() == (0, LONG, "\n[stop]\n")


async def test_characters_of_many_bytes(run_client: Any, server: Server) -> None:
    program = await run_client("What is the capital?", server.port)
    assert await program.end() == (0, "The capital is Paris. 巴黎 👋", "\n[stop]\n")


async def test_a_connection_that_breaks_loses_and_repeats_nothing(run_client: Any, proxy: Proxy) -> None:
    program = await run_client("long", proxy.port)
    for count in (20, 120, 250):
        await program.print_more_than(count)
        proxy.cut()
    status, printed, said = await program.end()
    assert (status, printed) == (0, LONG)
    assert said.endswith("[stop]\n")
    assert proxy.connections == 4


async def test_a_web_process_that_dies_loses_and_repeats_nothing(run_client: Any, server: Server) -> None:
    program = await run_client("long", server.port)
    await program.print_more_than(20)
    server.kill("web")
    status, printed, _ = await program.end()
    assert (status, printed) == (0, LONG)


async def test_ctrl_c_cancels(run_client: Any, server: Server) -> None:
    program = await run_client("long", server.port)
    await program.print_more_than(20)
    program.process.send_signal(signal.SIGINT)
    status, printed, said = await program.end()
    assert (status, said) == (0, "\n[cancelled]\n")
    assert LONG.startswith(printed)
    assert len(printed) < len(LONG)


async def test_a_wrong_key_is_said_once(run_client: Any, proxy: Proxy) -> None:
    program = await run_client("long", proxy.port, with_key="bs-wrong")
    status, printed, said = await program.end()
    assert (status, printed) == (1, "")
    assert "valid key" in said
    assert proxy.connections == 1


async def test_why_it_is_sent_away_is_said(run_client: Any) -> None:
    """And it comes back; a second later, or it would be nothing but work for the server."""
    connections = []

    async def talk(socket: ServerConnection) -> None:
        connections.append(socket)
        if len(connections) < 3:
            await socket.close(1013, "your account has 8 sockets open, and 8 are allowed")
            return
        await socket.send(json.dumps({"type": "hello"}))
        await socket.recv()
        await socket.send(json.dumps({"type": "accepted", "ref": "1", "request_id": "r", "position": 0}))
        await socket.send(json.dumps({"type": "finished", "request_id": "r", "seq": 1, "finish_reason": "stop"}))
        await socket.wait_closed()

    async with serve(talk, "127.0.0.1", 0) as server:
        program = await run_client("Hi", server.sockets[0].getsockname()[1])
        status, printed, said = await program.end()
    assert (status, printed, said.count("8 are allowed"), len(connections)) == (0, "", 2, 3)
    assert said.endswith("[stop]\n")


async def test_what_they_send(run_client: Any) -> None:
    """To a server that sends joined deltas, stops in mid-answer and goes on."""
    heard: list[dict[str, Any]] = []
    talks = [
        [
            {"type": "accepted", "ref": "1", "request_id": "r", "position": 0},
            {"type": "delta", "request_id": "r", "seq": 1, "text": "a"},
            {"type": "delta", "request_id": "r", "first_seq": 2, "seq": 4, "text": "bcd"},
            {"type": "draining"},
        ],
        [
            {"type": "delta", "request_id": "r", "seq": 5, "text": "e"},
            {"type": "finished", "request_id": "r", "seq": 6, "finish_reason": "stop"},
        ],
    ]

    async def talk(socket: ServerConnection) -> None:
        await socket.send(json.dumps({"type": "hello"}))
        heard.append(json.loads(await socket.recv()))
        for frame in talks.pop(0):
            await socket.send(json.dumps(frame))
            if frame["type"] == "delta":
                heard.append(json.loads(await socket.recv()))
        await socket.close(1012)

    async with serve(talk, "127.0.0.1", 0) as server:
        program = await run_client("Hi", server.sockets[0].getsockname()[1])
        status, printed, said = await program.end()
        assert (status, printed, said.strip()) == (0, "abcde", "[stop]")
    assert heard[0]["messages"] == [{"role": "user", "content": "Hi"}]
    assert [(message["type"], message.get("seq", message.get("after_seq"))) for message in heard] == [
        *(("generate", None), ("ack", 1), ("ack", 4), ("resume", 4), ("ack", 5))
    ]
    for message in heard:
        check_frame(message)
