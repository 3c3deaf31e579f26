"""The teaching controls over HTTP: staff changes a running engine, or sends it the demo's requests.

JSON in, JSON out, under the session's cookie and CSRF token. What is handed on is answered with 202: the engine shows
the effect in its status, which the scheduler page's socket carries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Annotated, Any

from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.translation import get_language
from django.utils.translation import gettext as _
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from inference.scheduling.request import RequestRefused
from inference.serving.client import Control
from playground import demo
from playground.controls import hand_on
from playground.gateway import get_gateway
from playground.http.errors import forbidden, json_error, method_not_allowed, refused

log = logging.getLogger("batchscope.controls")

Word = Annotated[str, Field(max_length=64)]
Number = Annotated[int, Field(ge=-(1 << 53), le=1 << 53)]
Answer = Coroutine[Any, Any, HttpResponse]


class Nothing(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ControlBody(Nothing):
    """What may be asked, and how far, is the engine's affair (inference/limits.py); here it is of the right kind."""

    engine: Annotated[Word, Field(min_length=1)]
    action: Word
    ms: float | None = None
    policy: Word | None = None
    max_num_seqs: Number | None = None
    max_num_batched_tokens: Number | None = None
    kv_blocks: Number | None = None


def for_staff(view: Callable[[HttpRequest, User], Answer]) -> Callable[[HttpRequest], Answer]:
    """Only staff, only POST, only where the controls are on; what is refused is answered in JSON."""

    @wraps(view)
    async def checked(request: HttpRequest) -> HttpResponse:
        user = await request.auser()
        if not isinstance(user, User) or not user.is_staff:
            return forbidden(request)
        if request.method != "POST":
            return method_not_allowed(request, "POST")
        if not settings.BATCHSCOPE.has_controls:
            message = _("The teaching controls are off on this service; BATCHSCOPE_TEACHING_CONTROLS turns them on.")
            return json_error("forbidden", message)
        try:
            return await view(request, user)
        except RequestRefused as error:
            return refused(error)
        except ValidationError as error:
            return _not_understood(error)

    return checked


@for_staff
async def control(request: HttpRequest, user: User) -> HttpResponse:
    body = ControlBody.model_validate_json(request.body)
    gateway = get_gateway()
    await gateway.ensure_started()
    await hand_on(gateway.client, Control(**body.model_dump(), by=user.get_username()))
    return JsonResponse({}, status=202)


@for_staff
async def send_demo(request: HttpRequest, user: User) -> HttpResponse:
    Nothing.model_validate_json(request.body or b"{}")
    gateway = get_gateway()
    await gateway.ensure_started()
    request_ids = await demo.send(gateway, user, get_language() or "")
    log.info("demo_asked: %d requests, by %s", len(request_ids), user.get_username())
    return JsonResponse({"request_ids": request_ids}, status=202)


def _not_understood(error: ValidationError) -> JsonResponse:
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return json_error("bad_json", _("The body is not JSON."))
    field = ".".join(str(part) for part in first["loc"])[:64]
    return json_error("bad_message", f"{field}: {first['msg']}" if field else first["msg"])
