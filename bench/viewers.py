"""A web process of its own and viewers of its scheduler page, for benchmarks of what they cost an engine.

    python -m bench.viewers HOST:PORT COUNT   connects so many and reads until it is killed; BENCH_COOKIES: of a session

Knows: how the web is started, the scheduler's socket. Must not know: the web's inside, engines.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STARTED_WITHIN = 60.0  # seconds


@contextlib.contextmanager
def web(url: str, folder: str) -> Generator[tuple[str, str, int]]:
    """host:port, the Cookie header of a staff session, and the process."""
    from bench.service import sign_in  # loads torch, which a process of viewers does without

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    env = {**os.environ, "BATCHSCOPE_REDIS_URL": url, "BATCHSCOPE_DATA_DIR": folder, "BATCHSCOPE_PORT": str(port)}
    manage = [sys.executable, str(ROOT / "manage.py")]
    subprocess.run([*manage, "migrate", "--verbosity", "0"], env=env, check=True)
    made = subprocess.run([*manage, "loginlink"], env=env, check=True, capture_output=True, text=True)
    process = subprocess.Popen([*manage, "web"], env=env, stderr=subprocess.DEVNULL)
    try:
        _until_up(port)
        yield f"127.0.0.1:{port}", sign_in(made.stdout.strip()), process.pid
    finally:
        process.terminate()
        process.wait(20)


def cpu_seconds(pid: int) -> float:
    """What a process has taken so far, in all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _until_up(port: int) -> None:
    deadline = time.monotonic() + STARTED_WITHIN
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise RuntimeError(f"the web process did not come up within {STARTED_WITHIN:.0f} s")


@contextlib.contextmanager
def watching(address: str, cookies: str, viewers: int) -> Generator[Callable[[], int]]:
    """So many viewers watch, in a process of their own. How many bytes they have got, to be asked for afterwards."""
    if not viewers:
        yield lambda: 0
        return
    command = [sys.executable, "-m", "bench.viewers", address, str(viewers)]
    process = subprocess.Popen(
        ["nice", "-n", "19", *command], env={**os.environ, "BENCH_COOKIES": cookies}, cwd=ROOT, stdout=subprocess.PIPE
    )
    try:
        if process.stdout is None or process.stdout.readline() != b"watching\n":
            raise RuntimeError("the viewers could not connect")
        told: list[bytes] = []
        yield lambda: int(told[0])
        process.terminate()
        told.append(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


async def watch(address: str, cookies: str, viewers: int) -> None:
    """Read what comes, until SIGTERM, and print how many bytes that were. No frame is looked at, and no ping answered:
    the server gives up after 50 s."""
    opened = [await _connect(address, cookies) for _ in range(viewers)]
    counts = [0] * viewers
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    reading = [asyncio.create_task(_read(reader, counts, i)) for i, (reader, _) in enumerate(opened)]
    print("watching", flush=True)
    await over.wait()
    print(sum(counts), flush=True)
    for task in reading:
        task.cancel()


async def _connect(address: str, cookies: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A WebSocket after its handshake. Raises RuntimeError where the server does not agree."""
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
    lines = [
        "GET /ws/scheduler/ HTTP/1.1",
        f"Host: {address}",
        f"Origin: http://{address}",
        f"Cookie: {cookies}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {base64.b64encode(secrets.token_bytes(16)).decode()}",
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    answer = await reader.readuntil(b"\r\n\r\n")
    if not answer.startswith(b"HTTP/1.1 101"):
        raise RuntimeError(f"the web process answered {answer[:40]!r}")
    return reader, writer


async def _read(reader: asyncio.StreamReader, counts: list[int], i: int) -> None:
    while data := await reader.read(1 << 20):
        counts[i] += len(data)


if __name__ == "__main__":
    asyncio.run(watch(sys.argv[1], os.environ["BENCH_COOKIES"], int(sys.argv[2])))
