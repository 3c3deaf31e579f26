"""The door of programs: what is below /v1/ goes straight to the API, past everything that is for browsers.

No session, no cookie, no CSRF token, no language and no redirect: a key is all that counts there. Whatever goes wrong
is told as JSON. The API's document, which people look at too, takes the usual way.
Must not know: what the API does.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from asgiref.sync import SyncToAsync, markcoroutinefunction
from django.http import HttpRequest, HttpResponseNotAllowed
from django.http.response import HttpResponseBase
from django.urls import resolve

from playground.http.middleware import HEADERS
from playground.http.openai.errors import answer_exception, not_allowed

BEGIN = "/v1/"
DOCUMENT = "/v1/openapi.json"


class ProgramDoor:
    """Django middleware, the first of all."""

    sync_capable = False
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Awaitable[HttpResponseBase]]) -> None:
        self._others = get_response
        markcoroutinefunction(self)

    async def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if not request.path_info.startswith(BEGIN) or request.path_info == DOCUMENT:
            return await self._others(request)
        request.received_at = time.time()  # type: ignore[attr-defined]
        # Database work goes to the one thread that sockets use too, not to a thread and connection of each request.
        SyncToAsync.thread_sensitive_context.set(None)  # type: ignore[arg-type]
        response = await self._answered(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        response.headers.setdefault("Cache-Control", "private, no-store")
        response.headers.setdefault("X-Content-Type-Options", "nosniff")
        return response

    async def _answered(self, request: HttpRequest) -> HttpResponseBase:
        try:
            request.get_host()
            found = resolve(request.path_info)
            request.resolver_match = found
            response = await found.func(request, *found.args, **found.kwargs)
        except Exception as error:
            return answer_exception(request, error)
        return not_allowed(request, response["Allow"]) if isinstance(response, HttpResponseNotAllowed) else response
