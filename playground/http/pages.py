"""The pages: chat, scheduler, login. They are shells; what moves in them comes over sockets and the JSON API."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth import login, views
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_safe

from playground.access.login_links import redeem
from playground.http.requests import UserRequest


@require_safe
@ensure_csrf_cookie
def chat(request: UserRequest) -> HttpResponse:
    return render(request, "chat.html")


@require_safe
@ensure_csrf_cookie
def scheduler(request: UserRequest) -> HttpResponse:
    if not request.user.is_staff:
        raise PermissionDenied
    return render(request, "scheduler.html", {"controls": settings.BATCHSCOPE.has_controls})


@login_not_required
@require_safe
@sensitive_variables("token")
def login_link(request: HttpRequest, token: str) -> HttpResponse:
    """Signs in with a plain GET, so that a browser and a script can both follow it. HEAD uses nothing up: chat programs
    and mail scanners send it to preview a link."""
    user = redeem(token) if request.method == "GET" else None
    if user is None:
        return render(request, "login_link_used.html", status=410)
    login(request, user, backend="django.contrib.auth.backends.ModelBackend")
    return redirect("chat")


@method_decorator(login_not_required, name="dispatch")
class Login(views.LoginView):
    template_name = "login.html"
    redirect_authenticated_user = True


class Logout(views.LogoutView):
    """POST only, as Django has it."""
