"""A step that never ends, behind a heart that beats: found from outside, killed, replaced. Slow ones are left alone."""

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path

import pytest
from support import brokers

from inference.serving.client import EngineClient, Submission
from playground import engine_watch, processes, watchdog
from playground.engine_watch import watch_engine
from playground.processes import Child

ROOT = Path(__file__).resolve().parents[2]
HANG_TIMEOUT = 1.5


@pytest.fixture(scope="module")
def valkey():
    with brokers.private() as server:
        yield server


@contextlib.asynccontextmanager
async def watched(url, step_seconds, monkeypatch):
    """An engine whose steps take so long, with a request to work on, and somebody who watches it; ends of processes."""
    monkeypatch.setattr(watchdog, "LOADING", HANG_TIMEOUT)  # else its first step may take a minute
    monkeypatch.setattr(engine_watch, "EVERY", 0.1)
    monkeypatch.setattr(processes, "FIRST_PAUSE", 0.01)
    ended = asyncio.Queue()

    async def on_exit(pid, status):
        ended.put_nowait((pid, status))

    command = [sys.executable, str(ROOT / "tests" / "support" / "workers.py"), url, "w", str(step_seconds), ""]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    child = Child("engine", command, env, on_exit=on_exit)
    client = EngineClient(url)
    await client.broker.redis.flushall()
    await child.start()
    tasks = [
        asyncio.create_task(child.keep_running()),
        asyncio.create_task(watch_engine(child, "w", client.broker, HANG_TIMEOUT)),
    ]
    try:
        while not [status for status in await client.engines() if status.state == "ready"]:
            await asyncio.sleep(0.05)
        yield child, client, ended
    finally:
        child.kill()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()


def request(words):
    params = {"max_tokens": words, "seed": 1}
    return Submission("r", params, prompt=" ".join(f"w{n}" for n in range(words)), submitted_at=time.time())


async def test_a_step_that_never_ends(valkey, monkeypatch):
    async with watched(valkey.url, 600, monkeypatch) as (child, client, ended):
        pid = child.pid
        await client.submit(request(3))
        while not any(status.busy for status in await client.engines()):
            await asyncio.sleep(0.05)
        assert await asyncio.wait_for(ended.get(), 60) == (pid, -9)
        while child.pid in (pid, None):
            await asyncio.sleep(0.05)


async def test_slow_steps(valkey, monkeypatch):
    """Each takes half of the limit, all of them more than twice as long as it, and nobody is killed."""
    async with watched(valkey.url, HANG_TIMEOUT / 2, monkeypatch) as (child, client, ended):
        pid = child.pid
        await client.start()
        await client.submit(request(5))
        async with contextlib.aclosing(client.follow("r")) as events:
            told = [event async for event in events]
        assert told[-1].finish_reason in ("stop", "length")
        assert child.pid == pid
        assert ended.empty()
