"""The pages that describe the APIs, and the AsyncAPI document. For everybody with an account.

Knows: which page shows which document. Must not know: how either document is made.
"""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_safe

from playground.asyncapi.document import document


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    return redirect("docs-api")


@require_safe
def api(request: HttpRequest) -> HttpResponse:
    return render(request, "docs/api.html")


@require_safe
def websocket(request: HttpRequest) -> HttpResponse:
    return render(request, "docs/websocket.html")


@require_safe
def asyncapi(request: HttpRequest) -> JsonResponse:
    """With the address by which its reader has come."""
    return JsonResponse(document(request.get_host(), request.is_secure()))
