"""BATCHSCOPE_DATABASE_URL as Django's DATABASES entry. Knows the two databases that are supported, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

BUSY_TIMEOUT = 15  # seconds a writer waits for another one
POOL_SIZE = 16  # PostgreSQL connections of one web process at most


class DatabaseURLError(ValueError):
    """The URL can't be used. The message never holds the URL, since a password may be in it."""


def sqlite_database(path: Path | str) -> dict[str, Any]:
    """SQLite for many short writers: readers don't wait for the writer (WAL), and a transaction takes the write lock
    when it begins, since a reader that turns writer fails at once with "database is locked", timeout or not.

    `synchronous=NORMAL`: a commit outlives the death of any process. A power cut may take the last commits with it, and
    never damages the file; waiting for the disk each time would cost 5 ms a request (PostgreSQL does wait)."""
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(path),
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": BUSY_TIMEOUT,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }


def database_from_url(url: str) -> dict[str, Any]:
    """Raises DatabaseURLError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise DatabaseURLError("its port or address can't be read") from None
    if parts.scheme == "sqlite":
        path = unquote(parts.path.removeprefix("/"))
        if parts.netloc or not path:
            raise DatabaseURLError("write SQLite as sqlite:///relative/path or sqlite:////absolute/path")
        return sqlite_database(Path(path).expanduser())
    if parts.scheme in ("postgres", "postgresql"):
        name = unquote(parts.path.removeprefix("/"))
        if not name or "/" in name:
            raise DatabaseURLError("write PostgreSQL as postgres://USER:PASSWORD@HOST:PORT/NAME")
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": name,
            "USER": unquote(parts.username or ""),
            "PASSWORD": unquote(parts.password or ""),
            "HOST": unquote(parts.hostname or ""),
            "PORT": str(port or ""),
            # A pool, since each HTTP request runs on a thread of its own and would open its own connection.
            "OPTIONS": {"pool": {"min_size": 1, "max_size": POOL_SIZE, "timeout": 10}},
        }
    raise DatabaseURLError("it must start with postgres:// or sqlite://")
