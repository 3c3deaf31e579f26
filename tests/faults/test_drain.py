"""A web process or an engine that is told to end (SIGTERM) ends what it has under way, and takes nothing new."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
import websockets
from support.api_keys import make_key
from support.server import Answer, Chat, Server, serving


@pytest.fixture(scope="module")
def server(scripted: str) -> Iterator[Server]:
    with serving(model=scripted) as running:
        yield running


@pytest.fixture(scope="module")
def key(server: Server) -> str:
    return make_key(server)


def asks(n: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"story {n} please"}]


async def whole(client: openai.AsyncOpenAI, n: int, model: str) -> str:
    answer = await client.chat.completions.create(model=model, messages=asks(n), max_tokens=600, temperature=0)
    return answer.choices[0].message.content


async def streamed(client: openai.AsyncOpenAI, n: int, model: str, begun: asyncio.Event) -> str:
    stream = await client.chat.completions.create(
        model=model, messages=asks(n), max_tokens=600, temperature=0, stream=True
    )
    text = ""
    async for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        if text:
            begun.set()
    return text


async def closing(chat: Chat) -> tuple[list[str], int]:
    """Types of the frames until the close, and its code."""
    kinds: list[str] = []

    async def listen() -> None:
        while True:
            kinds.append((await chat.receive())["type"])

    with pytest.raises(websockets.ConnectionClosed) as closed:
        await listen()
    assert closed.value.rcvd is not None, "cut off without a word"
    return kinds, closed.value.rcvd.code


@pytest.fixture
async def well(server: Server) -> None:
    """What an earlier test has ended has been started again; the test's timeout is the bound."""
    while True:
        with contextlib.suppress(httpx.TransportError):  # the last moment of the one before
            if (await asyncio.to_thread(server.get, "/health")).status_code == 200:
                return
        await asyncio.sleep(0.05)


@pytest.mark.usefixtures("well")
async def test_a_web_process_ends_its_answers_and_takes_no_new_ones(server: Server, key: str, story: Any) -> None:
    web = server.children()["web"]
    client = openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key=key, max_retries=0, timeout=60.0)
    program = httpx.AsyncClient(base_url=server.base_url, headers={"Authorization": f"Bearer {key}"}, timeout=60.0)
    async with client, program, server.chat() as busy, server.chat() as idle:
        model = (await client.models.list()).data[0].id
        begun, answer = asyncio.Event(), Answer()
        calls = [asyncio.create_task(streamed(client, 1, model, begun)), asyncio.create_task(whole(client, 2, model))]
        await begun.wait()
        request_id = await busy.generate("story 3 please", max_tokens=600, temperature=0)
        answer.take(await busy.receive_type("delta"))
        os.kill(web, signal.SIGTERM)
        assert await closing(idle) == (["hello", "draining"], 1012)
        paths = ("/health", "/health/ready", "/health/live", "/login/")
        answers = [await program.get(path) for path in paths]
        assert [answer.status_code for answer in answers] == [503, 503, 200, 200]
        assert answers[0].json()["reason"] == "draining"
        late = await program.post("/v1/chat/completions", json={"messages": asks(4)})
        assert (late.status_code, late.json()["error"]["code"]) == (503, "draining")
        assert int(late.headers["Retry-After"]) >= 5
        await busy.send(type="generate", ref="late", messages=asks(4))
        refused: dict[str, Any] = {}
        kinds = []
        while not answer.finished:
            message = await busy.receive()
            kinds.append(message["type"])
            if message.get("request_id") == request_id:
                answer.take(message)
            elif message["type"] == "error":
                refused = message
        assert "draining" in kinds
        assert (refused["code"], refused["ref"]) == ("draining", "late")
        assert answer.text == story(3)
        assert await asyncio.gather(*calls) == [story(1), story(2)]
        assert (await closing(busy))[1] == 1012


@pytest.mark.usefixtures("well")
async def test_an_engine_ends_its_answers_and_leaves_new_ones_to_the_next(server: Server, story: Any) -> None:
    engine = server.children()["engine"]
    async with server.chat() as chat:
        first, second = Answer(), Answer()
        request_id = await chat.generate("story 5 please", max_tokens=600, temperature=0)
        first.take(await chat.receive_type("delta"))
        os.kill(engine, signal.SIGTERM)
        while "engine_draining" not in (await asyncio.to_thread(server.get, "/health")).text:
            await asyncio.sleep(0.02)
        await asyncio.sleep(1.1)  # what it had asked the broker for before has come back
        await chat.send(type="generate", messages=asks(6), params={"max_tokens": 600, "temperature": 0})
        other = ""
        while not second.finished:
            message = await chat.receive()
            if message["type"] == "accepted":
                other = message["request_id"]
            elif message.get("request_id") == request_id:
                first.take(message)
            elif message.get("request_id") == other:
                second.take(message)
    assert (first.text, second.text) == (story(5), story(6))
    assert first.finished["receipt"]["stalled"] == 0, "it ended where it had begun"
    assert server.children()["engine"] != engine
