"""An engine that is told to end: it takes nothing new, ends what it has, and waits for nothing that would not come."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

from inference.serving.client import Control, EngineClient
from inference.serving.messages import Delta, EngineStatus, Finish, Submission

WORDS = [f"w{n}" for n in range(60)]
WHOLE = "".join(word + " " for word in WORDS)


async def answer(client: EngineClient, request_id: str) -> tuple[str, str, list[int]]:
    """Its text, the engine that ended it, and its seqs."""
    events = [event async for event in client.follow(request_id)]
    end = events[-1]
    assert isinstance(end, Finish)
    text = "".join(event.text for event in events if isinstance(event, Delta))
    return text, end.engine, [event.seq for event in events if isinstance(event, Delta | Finish)]


async def ask(client: EngineClient, request_id: str) -> asyncio.Task[tuple[str, str, list[int]]]:
    await client.submit(Submission(request_id, {"max_tokens": 100, "seed": 1}, prompt=" ".join(WORDS)))
    return asyncio.create_task(answer(client, request_id))


async def status(client: EngineClient, name: str, is_so: Callable[[EngineStatus], bool]) -> None:
    """Return once that is so of it; the test's timeout is the bound."""
    while not any(found.name == name and is_so(found) for found in await client.engines()):
        await asyncio.sleep(0.02)


async def begun(client: EngineClient, request_id: str) -> None:
    while len((await client.log(request_id)).deltas) < 3:
        await asyncio.sleep(0.02)


async def test_what_it_has_is_ended_and_what_comes_is_left_to_others(client: EngineClient, start_worker: Any) -> None:
    first = start_worker("a", step_seconds=0.02, drain_timeout=60.0)
    under_way = await ask(client, "r1")
    await begun(client, "r1")
    first.signal(signal.SIGTERM)
    await status(client, "a", lambda told: told.draining)
    await asyncio.sleep(1.1)  # what it had asked the broker for before has come back
    other = await ask(client, "r2")
    await asyncio.sleep(0.1)
    assert not (await client.log("r2")).claims
    start_worker("b")
    assert await under_way == (WHOLE, "a", list(range(1, 62)))
    assert await asyncio.to_thread(first.wait) == 0
    assert await other == (WHOLE, "b", list(range(1, 62)))


async def test_what_takes_too_long_goes_on_elsewhere(client: EngineClient, start_worker: Any) -> None:
    first = start_worker("a", step_seconds=0.05, drain_timeout=0.3)
    under_way = await ask(client, "r1")
    await begun(client, "r1")
    first.signal(signal.SIGTERM)
    assert await asyncio.to_thread(first.wait) == 0
    start_worker("b")
    assert await under_way == (WHOLE, "b", list(range(1, 62)))


async def test_a_second_signal_ends_it_at_once(client: EngineClient, start_worker: Any) -> None:
    first = start_worker("a", step_seconds=0.5, drain_timeout=600.0)
    under_way = await ask(client, "r1")
    await begun(client, "r1")
    first.signal(signal.SIGTERM)
    await status(client, "a", lambda told: told.draining)
    first.signal(signal.SIGTERM)
    assert await asyncio.to_thread(first.wait) == 0
    start_worker("b")
    assert await under_way == (WHOLE, "b", list(range(1, 62)))


async def test_an_idle_one_and_a_paused_one_wait_for_nothing(client: EngineClient, start_worker: Any) -> None:
    idle, paused = start_worker("idle", drain_timeout=600.0), start_worker("paused", drain_timeout=600.0)
    for worker in (idle, paused):
        await status(client, worker.name, lambda told: told.state == "ready")
    await client.control(Control("paused", "pause"))
    await status(client, "paused", lambda told: told.paused)
    idle.signal(signal.SIGTERM)
    assert await asyncio.to_thread(idle.wait) == 0
    under_way = await ask(client, "r1")
    while not (await client.log("r1")).claims:
        await asyncio.sleep(0.02)
    paused.signal(signal.SIGTERM)
    assert await asyncio.to_thread(paused.wait) == 0
    start_worker("b")
    assert await under_way == (WHOLE, "b", list(range(1, 62)))
