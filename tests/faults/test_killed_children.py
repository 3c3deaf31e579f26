"""Engine, broker or web is killed in mid-stream: every text is whole, nothing is lost, nothing comes twice."""

import asyncio
import contextlib
import os

import websockets
from support.server import Answer

from inference.scheduling.receipt import PARTS

STREAMS = 8


async def start_streams(server, stack):
    """Streams on sockets of their own, each with its first words read."""
    streams = []
    for n in range(STREAMS):
        chat = await stack.enter_async_context(server.chat())
        request_id = await chat.generate(f"story {n} please", max_tokens=600, temperature=0)
        streams.append((n, chat, request_id, Answer()))
    for _, chat, request_id, answer in streams:
        while answer.seq < 5:
            message = await chat.receive()
            if message.get("request_id") == request_id:
                answer.take(message)
    return streams


async def resume_until_finished(server, request_id, answer):
    """As a browser does: connect again and ask for what is missing, for as long as it takes."""
    while not answer.finished:
        with contextlib.suppress(OSError, websockets.WebSocketException):
            async with server.chat() as chat:
                await chat.send(type="resume", request_id=request_id, after_seq=answer.seq)
                await chat.read(request_id, answer)


def check(streams, story):
    for n, _, _, answer in streams:
        assert answer.text == story(n)
        assert answer.finished["finish_reason"] == "stop"
        assert not answer.error


async def test_engine_killed_with_eight_streams(lasting_server, story):
    async with contextlib.AsyncExitStack() as stack:
        streams = await start_streams(lasting_server, stack)
        dead = lasting_server.kill("engine")
        await asyncio.gather(*(chat.read(request_id, answer) for _, chat, request_id, answer in streams))
    check(streams, story)
    for *_, answer in streams:
        receipt = answer.finished["receipt"]
        assert receipt["stalled"] > 0
        assert abs(sum(receipt[part] for part in PARTS) - receipt["total"]) <= 0.01 * receipt["total"]
    assert lasting_server.children()["engine"] != dead
    assert lasting_server.get("/health").status_code == 200


async def test_broker_killed_with_eight_streams(lasting_server, story):
    async with contextlib.AsyncExitStack() as stack:
        streams = await start_streams(lasting_server, stack)
        lasting_server.kill("broker")
        await asyncio.gather(*(chat.read(request_id, answer) for _, chat, request_id, answer in streams))
    check(streams, story)
    assert lasting_server.get("/health").status_code == 200


async def test_web_killed_with_eight_streams(lasting_server, story):
    """No more than a reconnect: the engine never notices."""
    engine = lasting_server.children()["engine"]
    async with contextlib.AsyncExitStack() as stack:
        streams = await start_streams(lasting_server, stack)
        lasting_server.kill("web")
        await asyncio.gather(*(resume_until_finished(lasting_server, r, answer) for _, _, r, answer in streams))
    check(streams, story)
    assert lasting_server.children()["engine"] == engine


async def test_all_at_once_in_a_process_list(lasting_server):
    """Their names are what an operator looks for, and the web has no torch in it."""
    children = lasting_server.children()
    assert sorted(children) == ["broker", "engine", "web"]
    for name, pid in children.items():
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            assert file.read().replace(b"\0", b" ").split()[0].decode() == name
    with open(f"/proc/{children['web']}/maps") as file:
        assert "libtorch" not in file.read()
    socket = lasting_server.data_dir / "run" / "broker.sock"
    assert os.stat(socket.parent).st_mode & 0o077 == 0
