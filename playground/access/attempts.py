"""Wrong passwords and wrong login links: so many a minute from one address, then passwords are not looked at any more.

Knows: names and addresses, as hashes. Must not know: pages, passwords.
An attempt counts before it is looked at, so that many at once are no more than one after the other; one that was right
is taken back.
"""

from __future__ import annotations

import hashlib
import unicodedata
from functools import lru_cache

from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured

from playground.access.windows import Windows
from playground.gateway import get_gateway

MOST = 10  # that are wrong
SECONDS = 60


def begin(name: str, address: str) -> float:
    """Count an attempt at the account of that name ("": at login links). 0, or the seconds for which all are refused,
    right or wrong."""
    return async_to_sync(_begin)(_window(name, address))


def was_right(name: str, address: str) -> None:
    async_to_sync(_take_back)(_window(name, address))


async def _begin(window: str) -> float:
    windows = _windows()
    if await windows.add(window, SECONDS, 1) <= MOST:
        return 0.0
    return max(1.0, await windows.seconds_left(window))


async def _take_back(window: str) -> None:
    if await _windows().count(window) > 0:
        await _windows().add(window, SECONDS, -1)


def _window(name: str, address: str) -> str:
    same_name = unicodedata.normalize("NFKC", name.strip()).casefold()  # as the form reads it, or wider
    return "login/" + hashlib.sha256(f"{same_name}\n{address}".encode("utf-8", "replace")).hexdigest()


def _windows() -> Windows:
    """Those that all web processes share, where there is a broker."""
    try:
        return get_gateway().limiter.windows
    except ImproperlyConfigured:
        return _own_windows()


@lru_cache(maxsize=1)
def _own_windows() -> Windows:
    return Windows()
