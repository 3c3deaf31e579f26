"""A real server with the scripted model, a key for it, and the programs of docs/clients as processes."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from support.api_keys import make_key
from support.proxy import Proxy, proxy_to
from support.server import ROOT, Server, scripted_model, serving

CLIENTS = ROOT / "docs" / "clients"
LONG = " ".join(f"Word {n}." for n in range(60))
PATIENCE = {"WEBSOCKETS_BACKOFF_INITIAL_DELAY": "0.5", "WEBSOCKETS_BACKOFF_MIN_DELAY": "0.5"}  # seconds
REPLIES = [{"match": "capital", "text": "The capital is Paris. 巴黎 👋"}, {"match": "long", "text": LONG}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = scripted_model(
        tmp_path_factory.mktemp("clients"), step_ms=10, replies=REPLIES, default={"text": "Nothing to say."}
    )
    with serving(model=model, resume_grace="20") as running:
        yield running


@pytest.fixture(scope="module")
def key(server: Server) -> str:
    return make_key(server)


@pytest.fixture
async def proxy(server: Server) -> AsyncIterator[Proxy]:
    async with proxy_to(server.port) as running:
        yield running


def _node() -> list[str] | None:
    """A Node.js that has WebSocket, by itself (22 and newer) or when asked for it (20.10 and newer)."""
    place = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    found = shutil.which("node", path=place)
    if found is None:
        return None
    told = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    version = tuple(int(part) for part in re.findall(r"\d+", told)[:2])
    if version >= (22, 0):
        return [found]
    return [found, "--experimental-websocket", "--no-warnings"] if version >= (20, 10) else None


class Program:
    """One of docs/clients, running. Its output so far is in `printed`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.printed = b""

    async def print_more_than(self, count: int) -> None:
        """Wait until it has printed more than so many bytes."""
        while len(self.printed) <= count:
            piece = await asyncio.wait_for(self.process.stdout.read(4096), 30)
            if not piece:
                raise EOFError(f"it ended after {self.printed!r}")
            self.printed += piece

    async def end(self) -> tuple[int, str, str]:
        """Status, all output, all that it said on stderr."""
        rest, said = await asyncio.wait_for(self.process.communicate(), 60)
        return self.process.returncode, (self.printed + rest).decode(), said.decode()


RunClient = Callable[..., Awaitable[Program]]


@pytest.fixture(params=["websocket_client.py", "websocket_client.mjs"])
async def run_client(request: pytest.FixtureRequest, key: str) -> AsyncIterator[RunClient]:
    """Starts the client with a question, on a port."""
    command = [sys.executable, "-u"] if request.param.endswith(".py") else _node()
    if command is None:
        pytest.skip("there is no Node.js with WebSocket here")
    started: list[Program] = []

    async def run(question: str, port: int, with_key: str = key) -> Program:
        process = await asyncio.create_subprocess_exec(
            *(*command, str(CLIENTS / request.param), question),
            env={**os.environ, **PATIENCE, "BATCHSCOPE_KEY": with_key, "BATCHSCOPE_URL": f"ws://127.0.0.1:{port}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(Program(process))
        return started[-1]

    yield run
    for program in started:
        if program.process.returncode is None:
            program.process.kill()
            await program.process.wait()
