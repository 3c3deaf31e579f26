"""A PostgreSQL server of the test run's own, where the binaries are found: on a unix socket, gone with the test."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

USER = "batchscope"
START_WITHIN = 30.0  # seconds


def binaries() -> Path | None:
    """The folder of `initdb` and `postgres`: Debian keeps it out of PATH. None: there is none."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "postgres").exists()), None)


def _owner() -> dict[str, Any]:
    """PostgreSQL refuses to run as root: another user then, as keywords of Popen."""
    if os.getuid():
        return {}
    names = {entry.pw_name for entry in pwd.getpwall()}
    name = "postgres" if "postgres" in names else "nobody"
    return {"user": name, "group": pwd.getpwnam(name).pw_gid, "extra_groups": []}


class PostgresServer:
    def __init__(self) -> None:
        folder = binaries()
        assert folder is not None
        self._binaries, self._owner = folder, _owner()
        self.folder = Path(tempfile.mkdtemp(prefix="bs-pg-"))
        if self._owner:
            shutil.chown(self.folder, self._owner["user"])
        # What a power cut would do is no affair of these tests.
        command = [folder / "initdb", "--no-sync", "-A", "trust", "-U", USER, "-E", "UTF8", "-D", self._data]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **self._options())
        self.start()

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _options(self) -> dict[str, Any]:
        return {"cwd": self.folder, **self._owner}

    def start(self) -> None:
        flags = ["-c", "listen_addresses=", "-c", "fsync=off", "-k", str(self.folder)]
        command = [self._binaries / "postgres", "-D", self._data, *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL, **self._options())
        deadline = time.monotonic() + START_WITHIN
        while True:
            try:
                with self.connection():
                    return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise
                time.sleep(0.02)

    def stop(self) -> None:
        """All connections are cut, and nobody answers."""
        self.process.send_signal(signal.SIGINT)  # "fast shutdown"
        self.process.wait(20)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)  # at once, its children too
            self.process.wait(20)
        shutil.rmtree(self.folder, ignore_errors=True)

    def connection(self, name: str = "postgres") -> psycopg.Connection[Any]:
        return psycopg.connect(host=str(self.folder), user=USER, dbname=name, autocommit=True)

    def make_database(self, name: str) -> str:
        """An empty one; its URL."""
        with self.connection() as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def url(self, name: str) -> str:
        return f"postgres://{USER}@/{name}?host={quote(str(self.folder), safe='')}"


@contextlib.contextmanager
def private() -> Iterator[PostgresServer]:
    server = PostgresServer()
    try:
        yield server
    finally:
        server.close()
