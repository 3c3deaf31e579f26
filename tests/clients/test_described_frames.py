"""Every frame that a running service sends is as the AsyncAPI document says."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import websockets
from support.api_keys import make_key
from support.described import check_frame
from support.server import Server


def connect(server: Server, path: str, key: str) -> Any:
    headers = {"Authorization": f"Bearer {key}"}
    return websockets.connect(f"ws://127.0.0.1:{server.port}{path}", additional_headers=headers, max_size=None)


async def hear_until(socket: Any, kind: str, count: int = 1) -> list[dict[str, Any]]:
    """Frames up to the count-th of that type, each checked."""
    heard: list[dict[str, Any]] = []
    while [frame["type"] for frame in heard].count(kind) < count:
        heard.append(json.loads(await asyncio.wait_for(socket.recv(), 30)))
        check_frame(heard[-1])
    return heard


async def test_answers_and_the_scheduler_feed(server: Server) -> None:
    key = make_key(server, "generate", "scheduler")
    async with connect(server, "/ws/scheduler/", key) as feed, connect(server, "/ws/v1/", key) as socket:
        first = await hear_until(feed, "snapshot")
        for params in ({"n": 2, "logprobs": 2, "max_tokens": 8}, {"top_p": 3}):
            await socket.send(json.dumps({"type": "generate", "ref": "a", "prompt": "capital", "params": params}))
        await socket.send(json.dumps({"type": "ping", "t": 1}))
        heard = await hear_until(socket, "finished", 2)
        told = await hear_until(feed, "iterations")
    types = {frame["type"] for frame in heard}
    assert types >= {"hello", "accepted", "delta", "error", "pong", "finished"}
    assert first[-1]["engines"][0]["state"] == "ready"
    assert told[-1]["records"][-1]["rows"]


async def test_several_requests_on_one_socket_are_told_apart(server: Server, key: str) -> None:
    async with connect(server, "/ws/v1/", key) as socket:
        for ref, text in (("a", "long"), ("b", "What is the capital?"), ("c", "else")):
            message = {"type": "generate", "ref": ref, "messages": [{"role": "user", "content": text}]}
            await socket.send(json.dumps(message))
        heard = await hear_until(socket, "finished", 3)
    named = {frame["request_id"]: frame["ref"] for frame in heard if frame["type"] == "accepted"}
    texts = {ref: "" for ref in named.values()}
    for frame in heard:
        if frame["type"] == "delta":
            texts[named[frame["request_id"]]] += frame["text"]
    assert list(named.values()) == ["a", "b", "c"]
    assert texts["a"].startswith("Word 0. Word 1.")
    assert (texts["b"], texts["c"]) == ("The capital is Paris. 巴黎 👋", "Nothing to say.")
