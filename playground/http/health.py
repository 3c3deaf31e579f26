"""Health for load balancers and supervisors: 200 while an engine makes progress or is idle, else 503 with a word.

Open to everybody, so it says nothing but the status. Green health over a dead or hung engine is the field's most
repeated fault; so a heartbeat alone counts for nothing here: an engine with work must also have stepped.
"""

from __future__ import annotations

import asyncio
import time

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, JsonResponse

from playground.drain import get_drain
from playground.gateway import get_gateway
from playground.http.errors import only_read
from playground.verdicts import verdict

ANSWER_WITHIN = 3.0  # seconds for the broker to tell


@login_not_required
@only_read
async def health(request: HttpRequest) -> JsonResponse:
    if get_drain().is_draining:
        return _answer("draining")
    try:
        async with asyncio.timeout(ANSWER_WITHIN):
            gateway = get_gateway()
            await gateway.ensure_started()
            engines = await gateway.client.engines()
    except Exception:
        return _answer("no_broker")
    return _answer(verdict(engines, time.time(), settings.BATCHSCOPE.hang_timeout))


@login_not_required
@only_read
async def ready(request: HttpRequest) -> JsonResponse:
    """This web process takes new work. Says nothing about an engine: they are the same for all web processes."""
    return _answer("draining" if get_drain().is_draining else "ok")


@login_not_required
@only_read
async def live(request: HttpRequest) -> JsonResponse:
    """The web process runs. Says nothing about an engine."""
    return _answer("ok")


def _answer(word: str) -> JsonResponse:
    if word == "ok":
        return JsonResponse({"status": "ok"})
    return JsonResponse({"status": "unavailable", "reason": word}, status=503)
