"""An engine that hangs is found, killed and replaced, and every stream goes on; what it had counted is counted on."""

import asyncio
import contextlib
import os
import signal
import time

from support.server import Answer

STREAMS = 4


async def test_a_stopped_engine_is_replaced(make_server, story):
    """SIGSTOP: its heartbeat ends, and so does its work. Not ready meanwhile, and then again."""
    server = make_server()
    server.start().login()
    async with contextlib.AsyncExitStack() as stack:
        streams = []
        for n in range(STREAMS):
            chat = await stack.enter_async_context(server.chat())
            request_id = await chat.generate(f"story {n} please", max_tokens=600, temperature=0)
            answer = Answer()
            while answer.seq < 5:
                message = await chat.receive()
                if message.get("request_id") == request_id:
                    answer.take(message)
            streams.append((n, chat, request_id, answer))
        stopped = server.children()["engine"]
        os.kill(stopped, signal.SIGSTOP)
        seen = set()
        deadline = time.monotonic() + 60
        while server.children().get("engine") in (stopped, None) and time.monotonic() < deadline:
            seen.add(server.get("/health").status_code)
            await asyncio.sleep(0.2)
        await asyncio.gather(*(chat.read(request_id, answer) for _, chat, request_id, answer in streams))
    assert 503 in seen
    assert server.children()["engine"] != stopped
    assert server.get("/health").status_code == 200
    for n, _, _, answer in streams:
        assert answer.text == story(n)
        assert answer.finished["finish_reason"] == "stop"
    assert "engine_hung: it was stopped from outside" in server.output
