"""`manage.py serve` as a real process on a free port, over a data folder of its own, and a client for its sockets."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import websockets

ROOT = Path(__file__).resolve().parents[2]
START_WITHIN = 120.0
OWN = ("BATCHSCOPE_", "DJANGO_SETTINGS_MODULE", "TRITON_INTERPRET")  # what the test run has set for itself
KEPT = ("BATCHSCOPE_MODEL_CACHE", "BATCHSCOPE_KERNELS")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def scripted_model(folder: Path, **script: Any) -> str:
    """A value for BATCHSCOPE_MODEL: a model that says what the script says."""
    path = folder / "script.json"
    path.write_text(json.dumps(script))
    return f"scripted:{path}"


class Server:
    """Started by `start`; whatever it was doing ends with `close`."""

    def __init__(self, **settings: str) -> None:
        self.data_dir = self._own_dir = Path(tempfile.mkdtemp(prefix="bs-"))
        self.port = free_port()
        self.lines: list[str] = []
        self.login_link = ""
        self._settings = settings

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What commands beside it need too, so that they find its data."""
        given = {f"BATCHSCOPE_{name.upper()}": value for name, value in self._settings.items()}
        return {"BATCHSCOPE_DATA_DIR": str(self.data_dir), **given}

    def launch(self) -> None:
        """Start the process and return at once."""
        env = {name: value for name, value in os.environ.items() if name in KEPT or not name.startswith(OWN)}
        env |= {"BATCHSCOPE_PORT": str(self.port), "OMP_NUM_THREADS": "1", **self.environment}
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "manage.py"), "serve"],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def start(self) -> Server:
        """Start it and wait for the login link."""
        self.launch()
        self.login_link = self.wait_for_line("http://")
        return self

    def wait_for_line(self, start: str) -> str:
        deadline = time.monotonic() + START_WITHIN
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if line.startswith(start):
                    return line
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise RuntimeError(f"no line that starts with {start!r} came from serve:\n{self.output}")

    def children(self) -> dict[str, int]:
        """Names and process numbers of the processes under serve, as a process list shows them."""
        found = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                text = stat.read_text()
                name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
                if int(rest[1]) == self.process.pid:
                    found[name] = int(stat.parent.name)
        return found

    def kill(self, name: str) -> int:
        """SIGKILL for one of the children."""
        pid = self.children()[name]
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait(self, timeout: float = 30.0) -> int:
        status = self.process.wait(timeout)
        self._reader.join(timeout)
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(5.0)
        self.process.stdout.close()
        shutil.rmtree(self._own_dir, ignore_errors=True)  # a test may have given it another server's

    def login(self) -> None:
        """Follow the login link, which works once; keep the session."""
        with httpx.Client(follow_redirects=True, timeout=30.0) as http:
            http.get(self.login_link).raise_for_status()
            self.cookies = {cookie.name: cookie.value for cookie in http.cookies.jar}

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.base_url + path, timeout=30.0)

    @contextlib.asynccontextmanager
    async def chat(self, path: str = "/ws/chat/", **options: Any) -> AsyncIterator[Chat]:
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        async with websockets.connect(
            f"ws://127.0.0.1:{self.port}{path}",
            origin=self.base_url,
            additional_headers={"Cookie": cookie},
            max_size=None,
            **options,
        ) as connection:
            yield Chat(connection)

    def memory(self, name: str) -> int:
        """Resident bytes of one of the children."""
        status = Path(f"/proc/{self.children()[name]}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024


class Chat:
    """One socket of the chat page."""

    def __init__(self, connection: websockets.ClientConnection) -> None:
        self.connection = connection

    async def send(self, **message: Any) -> None:
        await self.connection.send(json.dumps(message))

    async def receive(self) -> dict[str, Any]:
        return json.loads(await self.connection.recv())

    async def receive_type(self, kind: str) -> dict[str, Any]:
        """The next message of that type; others before it are skipped."""
        while (message := await self.receive())["type"] != kind:
            pass
        return message

    async def generate(self, text: str, **params: Any) -> str:
        """Ask; the request id once it is accepted."""
        await self.send(type="generate", messages=[{"role": "user", "content": text}], params=params)
        return (await self.receive_type("accepted"))["request_id"]

    async def read(self, request_id: str, answer: Answer) -> Answer:
        """Read on until the request is finished. Raises where seq has a gap or a repeat."""
        while not answer.finished:
            message = await self.receive()
            if message.get("request_id") == request_id:
                answer.take(message)
        return answer


class Answer:
    """What a client has of an answer so far."""

    def __init__(self) -> None:
        self.text, self.seq, self.finished, self.error = "", 0, {}, {}

    def take(self, message: dict[str, Any]) -> None:
        if message["type"] == "error":
            self.error = message
            return
        if message["type"] not in ("delta", "finished"):
            return
        if message.get("first_seq", message["seq"]) != self.seq + 1:
            raise AssertionError(f"seq {message['seq']} came after {self.seq}")
        self.seq = message["seq"]
        if message["type"] == "delta":
            self.text += message["text"]
        else:
            self.finished = message


@contextlib.contextmanager
def serving(**settings: str) -> Iterator[Server]:
    """A server that is up and to which we are signed in."""
    server = Server(**settings)
    try:
        server.start().login()
        yield server
    finally:
        server.close()
