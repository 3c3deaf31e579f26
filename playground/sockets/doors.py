"""By which door a socket comes, and who comes: programs with keys, browsers with sessions, never both.

Knows: addresses, the key in the headers. Must not know: messages. What a browser adds by itself to any page's sockets
(cookies) counts only with an Origin of our own, and what a page can't add (`Authorization: Bearer`) counts alone: with
a key no cookie is looked at, and no Origin either, which programs send or leave out as their library likes. A key that
is no good closes the door; the cookie beside it does not open it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from channels.security.websocket import WebsocketDenier

from playground.access.bearer import bearer_of
from playground.access.callers import Caller, may
from playground.access.keys import caller_of_key
from playground.sockets.origin import host_is_ours

PROGRAMS_ONLY = "/ws/v1/"
EITHER = "/ws/scheduler/"
WITHOUT_SLASH = (PROGRAMS_ONLY.rstrip("/"), EITHER.rstrip("/"))
BEARER = "batchscope.bearer"  # in the scope of those that came by the door of programs: the key, or ""


class Doors:
    """Sends each socket to the application behind its door."""

    def __init__(self, programs: Any, browsers: Any, allowed_hosts: Collection[str]) -> None:
        self._programs, self._browsers, self._hosts = programs, browsers, allowed_hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        if scope["path"] in WITHOUT_SLASH:  # as programs' addresses are often written; else they would get a bare 403
            scope = {**scope, "path": scope["path"] + "/"}
        secret = bearer_of(scope["headers"])
        if scope["path"] != PROGRAMS_ONLY and not (scope["path"] == EITHER and secret is not None):
            return await self._browsers(scope, receive, send)
        application = self._programs if host_is_ours(scope, self._hosts) else WebsocketDenier()
        scope[BEARER] = secret or ""
        return await application(scope, receive, send)


def enter(scope: Any, right: str) -> tuple[Caller | None, bool]:
    """Who comes, if anybody whom we know, and whether they have the right. Reads the database."""
    if BEARER in scope:
        caller = caller_of_key(scope[BEARER])
    else:
        caller = Caller(scope["user"]) if scope["user"].is_authenticated else None
    return caller, caller is not None and may(caller, right)
