"""What a server that runs as a process of its own has written of its requests."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable

from support.server import Server

WITHIN = 20.0  # seconds


def rows(server: Server) -> list[tuple[str, str, int]]:
    """State, finish reason and tokens of all requests, the oldest first."""
    with contextlib.closing(sqlite3.connect(server.data_dir / "batchscope.sqlite3")) as database:
        return database.execute(
            "SELECT state, finish_reason, completion_tokens FROM playground_inferencerequest ORDER BY created_at"
        ).fetchall()


def until(what: Callable[[], bool], within: float = WITHIN) -> None:
    deadline = time.monotonic() + within
    while not what():
        if time.monotonic() > deadline:
            raise AssertionError("it did not come to be in time")
        time.sleep(0.02)
