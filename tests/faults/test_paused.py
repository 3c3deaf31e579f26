"""A paused engine behind a whole service: healthy for as long as it is paused, and every answer is whole."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
from support.server import Answer, Server

HANG_TIMEOUT = 1.5  # seconds


def staff(server: Server) -> httpx.Client:
    """The local admin's browser, with the CSRF token of the page."""
    headers = {"Accept": "application/json", "X-CSRFToken": server.cookies["csrftoken"]}
    return httpx.Client(base_url=server.base_url, cookies=server.cookies, headers=headers, timeout=30.0)


async def test_paused_slow_and_small_it_answers_whole(make_server: Any, story: Any) -> None:
    server = make_server(hang_timeout=str(HANG_TIMEOUT), max_num_seqs="4", kv_blocks="400")
    server.start().login()
    with staff(server) as browser:

        def ask(action: str, **values: Any) -> None:
            answer = browser.post("/scheduler/control/", json={"engine": "engine-1", "action": action, **values})
            assert (answer.status_code, answer.json()) == (202, {}), answer.text

        async with server.chat() as chat, server.chat() as other:
            request_id = await chat.generate("story 1 please", max_tokens=80, temperature=0)
            answer = Answer()
            while answer.seq < 5:
                answer.take(await chat.receive())
            ask("pause")
            second = await other.generate("story 2 please", max_tokens=80, temperature=0)
            paused_at, seen = time.monotonic(), set()
            while time.monotonic() < paused_at + 2 * HANG_TIMEOUT:
                seen.add(server.get("/health").status_code)
                await asyncio.sleep(0.1)
            assert seen == {200}
            for _ in range(3):
                ask("step")
            ask("set", max_num_seqs=1, kv_blocks=200)
            ask("policy", policy="static")
            ask("slow", ms=2)
            ask("resume")
            await asyncio.gather(chat.read(request_id, answer), other.read(second, told := Answer()))
            for n, whole in ((1, answer), (2, told)):
                assert story(n).startswith(whole.text)
                assert (whole.finished["finish_reason"], whole.finished["usage"]["completion_tokens"]) == ("length", 80)
        refused = browser.post("/scheduler/control/", json={"engine": "engine-1", "action": "set", "max_num_seqs": 5})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "bad_params")
        ask("slow", ms=0)
        sent = browser.post("/scheduler/demo/", json={})
        assert (sent.status_code, len(sent.json()["request_ids"])) == (202, 12)
    assert "control_asked" in server.output
