"""BATCHSCOPE_DATABASE_URL as Django's DATABASES entry. Knows the two databases that are supported, and nothing else."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

BUSY_TIMEOUT = 15  # seconds a writer waits for another one
KEPT = 5  # seconds for which a thread keeps SQLite's file open; a file that was put in its place is seen then
# PostgreSQL's connections, of one web process.
POOL_SIZE = 16  # at most
POOL_TIMEOUT = 2  # seconds that a thread waits for one; one thread works for all sockets, so this is everybody's wait
CONNECT_TIMEOUT = 5  # seconds
SILENCE = 10  # seconds without a sign of life of the other end, after which a connection is dead


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
        "CONN_MAX_AGE": KEPT,  # opening it takes longer than most of what is done with it
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
        return _postgres(
            NAME=name,
            USER=unquote(parts.username or ""),
            PASSWORD=unquote(parts.password or ""),
            HOST=unquote(parts.hostname or ""),
            PORT=str(port or ""),
            options=dict(parse_qsl(parts.query)),
        )
    raise DatabaseURLError("it must start with postgres:// or sqlite://")


def _postgres(*, options: dict[str, str], **fields: str) -> dict[str, Any]:
    """options: libpq's, as they stand behind the `?` of a URL, such as sslmode and host."""
    if not all(map(find_spec, ("psycopg", "psycopg_pool"))):
        raise DatabaseURLError("PostgreSQL needs its driver; install it with: .venv/bin/pip install -e '.[postgres]'")
    # A pool, since each page's request runs on a thread of its own and would open its own connection.  A server that is
    # away is asked for again as soon as somebody waits, not after ever longer pauses.
    pool = {"min_size": 1, "max_size": POOL_SIZE, "timeout": POOL_TIMEOUT, "reconnect_timeout": POOL_TIMEOUT}
    limits = {"connect_timeout": CONNECT_TIMEOUT, "tcp_user_timeout": 1000 * SILENCE}
    return {
        "ENGINE": "django.db.backends.postgresql",
        **fields,
        "CONN_HEALTH_CHECKS": True,  # else whoever comes next pays for each connection that the server has cut
        "OPTIONS": {**limits, **options, "pool": pool},
    }
