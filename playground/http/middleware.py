"""Django middleware: who may come in, and the headers that every answer carries.

Nothing is open by default (R17): a view that anybody may see says so with `login_not_required`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib.auth import middleware as auth
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _

from playground.http.errors import json_error, wants_json

HEADERS = {
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def response_headers(
    get_response: Callable[[HttpRequest], HttpResponseBase],
) -> Callable[[HttpRequest], HttpResponseBase]:
    """Headers beside those of Django's SecurityMiddleware and of django-csp. What is not static is not cached."""

    def middleware(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        response.headers.setdefault("Cache-Control", "private, no-store")
        return response

    return middleware


class LoginRequired(auth.LoginRequiredMiddleware):
    """Sends people to the login page; programs get JSON 401."""

    def handle_no_permission(self, request: HttpRequest, view_func: Any) -> Any:
        if wants_json(request):
            return json_error("unauthorized", _("Sign in first."))
        return super().handle_no_permission(request, view_func)
