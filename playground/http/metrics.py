"""GET /metrics, for Prometheus: a key with the scope `metrics`, or the session of somebody who may watch the engines.

Whichever web process is asked, it answers for all engines and all web processes (playground/metrics/).
"""

from __future__ import annotations

import asyncio

from channels.db import database_sync_to_async
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from inference.serving.client import UNREACHABLE
from playground.access.bearer import bearer_of
from playground.access.callers import METRICS, Caller, may
from playground.access.keys import caller_of_key
from playground.gateway import get_gateway
from playground.http.errors import json_error, only_read
from playground.metrics.exposition import exposition

ANSWER_WITHIN = 3.0  # seconds for the broker to tell


@login_not_required  # checked here: scrapers have keys, not sessions
@only_read
async def metrics(request: HttpRequest) -> HttpResponse:
    caller = await _caller(request)
    if caller is None:
        return json_error("unauthorized", _("Sign in first, or send a key with the scope metrics as a bearer token."))
    if not await database_sync_to_async(may)(caller, METRICS):
        return json_error("forbidden", _("This needs a key with the scope metrics of an account that may watch."))
    try:
        async with asyncio.timeout(ANSWER_WITHIN):
            gateway = get_gateway()
            await gateway.ensure_started()
            reading = await gateway.beat.read()
    except UNREACHABLE:  # a timeout is one of them
        return json_error("engine_unavailable", _("The broker does not answer."))
    body, content_type = exposition(reading)
    return HttpResponse(body, content_type=content_type)


async def _caller(request: HttpRequest) -> Caller | None:
    """By its key where an Authorization header was sent, whatever cookies came with it."""
    headers = getattr(request, "scope", {}).get("headers", ())
    if any(name.lower() == b"authorization" for name, _ in headers):
        secret = bearer_of(headers)
        return await database_sync_to_async(caller_of_key)(secret) if secret else None
    user = await request.auser()
    return Caller(user) if isinstance(user, User) else None
