"""Errors over HTTP: JSON with a stable code for programs, a page for people. Never a path or a traceback."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from math import ceil
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_exempt

from inference.config import RequestRefused
from playground import metrics

View = Callable[..., Coroutine[Any, Any, HttpResponseBase]]
STATUS_OF_CODE = {
    "bad_json": 400,
    "bad_message": 400,
    "bad_params": 400,
    "prompt_too_long": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "conflict": 409,
    "too_large": 413,
    "queue_full": 429,
    "rate_limited": 429,
    "internal": 500,
    "engine_unavailable": 503,
    "draining": 503,
}


def json_error(code: str, message: str, **extra: Any) -> JsonResponse:
    metrics.refused(code)
    return JsonResponse({"error": {"code": code, "message": message, **extra}}, status=STATUS_OF_CODE[code])


def refused(error: RequestRefused) -> JsonResponse:
    """With the time after which it may be sent again, where there is one."""
    answer = json_error(error.code, str(error))
    if error.retry_after is not None:
        answer["Retry-After"] = str(max(1, ceil(error.retry_after)))
    return answer


def method_not_allowed(request: HttpRequest, allowed: str) -> JsonResponse:
    """allowed: methods that would do, with commas between."""
    answer = json_error("method_not_allowed", _("This address does not answer to %s.") % request.method)
    answer["Allow"] = allowed
    return answer


def only_read(view: View) -> View:
    """For what programs read: whatever would write is told so, and not that a form has expired."""

    @csrf_exempt  # nothing is written
    @wraps(view)
    async def read(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if request.method not in ("GET", "HEAD"):
            return method_not_allowed(request, "GET, HEAD")
        return await view(request, *args, **kwargs)

    return read


def wants_json(request: HttpRequest) -> bool:
    """Whether a program is asking: by the path, or by what it accepts."""
    below_a_page = request.path.startswith("/scheduler/") and request.path != "/scheduler/"
    if below_a_page or request.path.startswith("/api/"):
        return True
    return request.get_preferred_type(["text/html", "application/json"]) == "application/json"


def _answer(request: HttpRequest, code: str, message: str) -> HttpResponse:
    if wants_json(request):
        return json_error(code, message)
    metrics.refused(code)
    return render(request, f"{STATUS_OF_CODE[code]}.html", {"message": message}, status=STATUS_OF_CODE[code])


def bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _answer(request, "bad_message", _("The request can't be understood."))


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _answer(request, "forbidden", _("Your account has no right to see this page."))


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    return _answer(
        request, "forbidden", _("The form has expired or came from another site. Reload the page and try again.")
    )


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _answer(request, "not_found", _("There is nothing at this address."))


def server_error(request: HttpRequest) -> HttpResponse:
    message = _("Something went wrong on the server. The log has the details.")
    if wants_json(request):
        return json_error("internal", message)
    # Without the request: its session may be what went wrong.
    return HttpResponse(render_to_string("500.html", {"message": message}), status=500)
