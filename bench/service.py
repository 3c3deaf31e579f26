"""Tokens/s through the whole service (`manage.py serve`, one WebSocket) against the engine alone.

Knows: the socket's protocol, how serve is started. Must not know: the web's inside, the engine's.
Both get the same texts at once, all of their tokens wanted. The service runs its web server, broker and engine on the
same cores, as it does for its users.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.cookiejar
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.burst import burst
from bench.machine import ROOT
from inference import Engine, SamplingParams

WORDS = (
    "the of to harbour water stone light ship morning letter engine window river paper table winter road".split()  # noqa: SIM905
)
START_WITHIN = 180.0  # seconds
Question = tuple[str, int]  # text, tokens wanted


@dataclass(frozen=True, slots=True)
class Through:
    """Output tokens/s. ready: seconds from starting serve to its login link."""

    alone: float
    service: float
    ready: float

    @property
    def share(self) -> float:
        return self.service / self.alone


def questions(count: int, seed: int) -> list[Question]:
    """Texts of as many words as the burst's prompts have tokens."""
    draw = random.Random(seed)
    return [(" ".join(draw.choices(WORDS, k=len(ids))), wanted) for ids, wanted in burst(count, seed=seed)]


def alone(engine: Engine, asked: list[Question]) -> float:
    params = [SamplingParams(max_tokens=wanted, temperature=0.0, ignore_eos=True) for _, wanted in asked]
    begun = time.perf_counter()
    outputs = engine.generate([text for text, _ in asked], params)
    return sum(len(output.token_ids) for output in outputs) / (time.perf_counter() - begun)


def measure(engine: Engine, model: str, dtype: str, count: int) -> Through:
    """The engine alone before and after, the service in between; both warmed with other questions.

    Raises RuntimeError where serve does not start, or an answer fails.
    """
    alone(engine, questions(8, 9))
    before = alone(engine, questions(count, 0))
    with serving(model, dtype) as (address, link, ready):
        cookies = sign_in(link)
        asyncio.run(ask(address, cookies, questions(8, 9)))
        service = asyncio.run(ask(address, cookies, questions(count, 1)))
    after = alone(engine, questions(count, 1))
    return Through((before + after) / 2, service, ready)


@contextlib.contextmanager
def serving(model: str, dtype: str) -> Generator[tuple[str, str, float]]:
    """host:port, login link, and seconds until that came. The service has a data folder of its own, and goes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="bs-")
    settings = {"DATA_DIR": folder, "HOST": "127.0.0.1", "PORT": str(port), "MODEL": model, "DTYPE": dtype}
    env = {**os.environ, **{f"BATCHSCOPE_{name}": value for name, value in settings.items()}}
    begun = time.perf_counter()
    output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed below, after the process that writes to it
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "manage.py"), "serve"], env=env, stdout=output, stderr=subprocess.STDOUT
    )
    try:
        link = _login_link(process, Path(f"/proc/self/fd/{output.fileno()}"))
        yield f"127.0.0.1:{port}", link, time.perf_counter() - begun
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        output.close()
        shutil.rmtree(folder, ignore_errors=True)


def _login_link(process: subprocess.Popen[Any], output: Path) -> str:
    deadline = time.monotonic() + START_WITHIN
    while time.monotonic() < deadline and process.poll() is None:
        for line in output.read_text().splitlines():
            if line.startswith("http://"):
                return line.strip()
        time.sleep(0.05)
    last = (output.read_text().strip().splitlines() or ["it said nothing"])[-1]
    raise RuntimeError(f"serve did not come up within {START_WITHIN:.0f} s: {last}")


def sign_in(link: str) -> str:
    """The Cookie header of a session."""
    jar = http.cookiejar.CookieJar()
    urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar)).open(link, timeout=30).read()
    return "; ".join(f"{cookie.name}={cookie.value}" for cookie in jar)


async def ask(address: str, cookies: str, asked: list[Question]) -> float:
    """Output tokens/s from the first question to the last token. Raises RuntimeError where an answer fails."""
    import websockets

    async with websockets.connect(
        f"ws://{address}/ws/chat/",
        origin=websockets.Origin(f"http://{address}"),
        additional_headers={"Cookie": cookies},
        max_size=None,
    ) as connection:
        begun, ended, tokens = time.perf_counter(), 0, 0
        for text, wanted in asked:
            params = {"max_tokens": wanted, "temperature": 0.0, "ignore_eos": True}
            await connection.send(json.dumps({"type": "generate", "prompt": text, "params": params}))
        while ended < len(asked):
            message = json.loads(await connection.recv())
            if message["type"] == "error":
                raise RuntimeError(f"the service refused a question of the benchmark: {message['message']}")
            if message["type"] == "finished":
                ended, tokens = ended + 1, tokens + message["usage"]["completion_tokens"]
        return tokens / (time.perf_counter() - begun)
