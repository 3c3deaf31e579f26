"""Decode steps of the engine's process as it is: the worker's loop, the broker's thread, a real broker.

Knows: how the worker and its link are put together. Must not know: the web. Requests come through the broker; nobody
follows the answers, so what is measured is the engine's side alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path
from queue import SimpleQueue

from bench.steps import Step, end, full_since, newest, params_of, prompts_of, step_of
from inference import Engine
from inference.serving.client import EngineClient
from inference.serving.link import BrokerLink
from inference.serving.messages import EngineStatus, Submission
from inference.serving.orders import Order, Stop
from inference.serving.worker import Worker
from playground import private_broker
from playground.processes import TETHER

WITHIN = 120.0  # seconds in which all steps must have been made


@contextlib.contextmanager
def broker() -> Generator[str]:
    """A private broker's URL; it ends with this process, however that ends."""
    folder = Path(tempfile.mkdtemp(prefix="bs-"))
    command = [sys.executable, "-I", "-S", str(TETHER), str(os.getpid()), *private_broker.command(folder)]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        private_broker.wait_until_up(folder)
        yield private_broker.url_of(folder)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def measure_in_worker(engine: Engine, requests: int, steps: int, vocab_size: int) -> Step:
    """As measure_alone, with the worker's loop around the engine and a broker of its own, which a run before can have
    left nothing in. Call it from the main thread."""
    with broker() as url:
        return _measure(engine, url, requests, steps, vocab_size)


def _measure(engine: Engine, url: str, requests: int, steps: int, vocab_size: int) -> Step:
    before, epoch = newest(engine), time.time_ns() // 1000
    engine.epoch = epoch
    orders: SimpleQueue[Order] = SimpleQueue()
    settings = {"policy": engine.scheduler.policy.name}
    status = EngineStatus("bench", os.getpid(), "loading", False, time.time(), settings=settings, epoch=epoch)
    link = BrokerLink(url, "bench", f"bench@{epoch}", orders, status)
    link.start()
    asked = {secrets.token_hex(16): prompt for prompt in prompts_of(requests, vocab_size)}

    def ask_and_stop() -> None:
        try:
            asyncio.run(_submit(url, asked, params_of(engine).max_tokens))
            deadline = time.monotonic() + WITHIN
            while time.monotonic() < deadline and len(full_since(engine, before, requests)) <= steps:
                time.sleep(0.2)  # seldom: it is the step thread whose time is taken
        finally:
            orders.put(Stop())

    asker = threading.Thread(target=ask_and_stop, daemon=True)
    try:
        asker.start()
        Worker(engine, link, orders, status).run()
        asker.join()
    finally:
        end(engine, list(asked))
        link.close()
    return step_of(full_since(engine, before, requests), requests)


async def _submit(url: str, asked: dict[str, list[int]], max_tokens: int) -> None:
    client = EngineClient(url)
    params = {"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True, "seed": 0}
    try:
        for name, prompt in asked.items():
            await client.submit(Submission(name, params, prompt_ids=prompt, user="bench", submitted_at=time.time()))
    finally:
        await client.close()
