"""Health for load balancers and supervisors: 200 while an engine makes progress or is idle, else 503 with a word.

Open to everybody, so it says nothing but the status. Green health over a dead or hung engine is the field's most
repeated fault; so a heartbeat alone counts for nothing here: an engine with work must also have stepped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe

from inference.serving.messages import EngineStatus
from playground.gateway import get_gateway

ANSWER_WITHIN = 3.0  # seconds for the broker to tell


def verdict(engines: Sequence[EngineStatus], now: float, hang_timeout: float) -> str:
    """ "ok" if any engine serves; else the reason: "loading", "hung", "failed", "no_engine"."""
    words = {_state(engine, now, hang_timeout) for engine in engines}
    return next((word for word in ("ok", "loading", "hung", "failed") if word in words), "no_engine")


def _state(engine: EngineStatus, now: float, hang_timeout: float) -> str:
    if engine.state != "ready":
        return "loading" if engine.state == "loading" else "failed"
    return "hung" if engine.busy and now - engine.progress_at > hang_timeout else "ok"


@login_not_required
@require_safe
async def health(request: HttpRequest) -> JsonResponse:
    try:
        async with asyncio.timeout(ANSWER_WITHIN):
            gateway = get_gateway()
            await gateway.ensure_started()
            engines = await gateway.client.engines()
    except Exception:
        return _answer("no_broker")
    return _answer(verdict(engines, time.time(), settings.BATCHSCOPE.hang_timeout))


@login_not_required
@require_safe
async def live(request: HttpRequest) -> JsonResponse:
    """The web process runs. Says nothing about an engine."""
    return _answer("ok")


def _answer(word: str) -> JsonResponse:
    if word == "ok":
        return JsonResponse({"status": "ok"})
    return JsonResponse({"status": "unavailable", "reason": word}, status=503)
