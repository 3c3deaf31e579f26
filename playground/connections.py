"""Connections to the database: which threads keep theirs, and the lock under which requests are accepted.

Knows: asgiref's threads, and in what PostgreSQL is unlike SQLite there. Must not know: rows.
"""

from __future__ import annotations

from typing import Any

from asgiref.sync import SyncToAsync
from django.core.signals import request_finished
from django.db import connection, connections

from playground.database import BUSY_TIMEOUT

ACCEPTING = 0xBA7C_5C0B  # the number of PostgreSQL's lock; any that nobody else uses


def accept_alone() -> None:
    """Until this transaction ends no other one accepts, in whatever process: what it counts stays true. On SQLite it
    has the write lock since it began."""
    if connection.vendor == "postgresql":
        lock = "SELECT set_config('lock_timeout', %s, true), pg_advisory_xact_lock(%s)"
        with connection.cursor() as cursor:
            cursor.execute(lock, [f"{BUSY_TIMEOUT}s", ACCEPTING])


def close_with_their_threads() -> None:
    """One thread works for all sockets and programs, and keeps its connection from call to call. A page's request has a
    thread of its own, which ends with it, and its connection with it."""
    request_finished.connect(_close_own)


def _close_own(**kwargs: Any) -> None:
    if SyncToAsync.thread_sensitive_context.get(None) is not None:  # this thread is one request's
        connections.close_all()
