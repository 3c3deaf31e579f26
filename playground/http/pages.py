"""The pages: chat, scheduler, login. They are shells; what moves in them comes over sockets and the JSON API."""

from __future__ import annotations

from math import ceil
from typing import Any, cast

from django.conf import settings
from django.contrib.auth import login, views
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_safe

from playground.access import attempts
from playground.access.callers import may_watch
from playground.access.login_links import redeem
from playground.http.requests import UserRequest


@require_safe
@ensure_csrf_cookie
def chat(request: UserRequest) -> HttpResponse:
    return render(request, "chat.html")


@require_safe
@ensure_csrf_cookie
def scheduler(request: UserRequest) -> HttpResponse:
    if not may_watch(request.user):
        raise PermissionDenied
    return render(request, "scheduler.html", {"controls": settings.BATCHSCOPE.has_controls and request.user.is_staff})


@login_not_required
@require_safe
@sensitive_variables("token")
def login_link(request: HttpRequest, token: str) -> HttpResponse:
    """Signs in with a plain GET, so that a browser and a script can both follow it. HEAD uses nothing up: chat programs
    and mail scanners send it to preview a link."""
    user = redeem(token) if request.method == "GET" else None
    if user is None:
        # A link that is right is never refused: nobody guesses one, and nobody shall shut this door for others.
        if wait := attempts.begin("", _address(request)):
            return _shut(request, "login_link_used.html", wait)
        return render(request, "login_link_used.html", status=410)
    login(request, user, backend="django.contrib.auth.backends.ModelBackend")
    return redirect("chat")


@method_decorator(login_not_required, name="dispatch")
class Login(views.LoginView):
    template_name = "login.html"
    redirect_authenticated_user = True

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if wait := attempts.begin(self._name, _address(request)):
            return _shut(request, "login.html", wait, form=self.get_form_class()(request))
        return super().post(request, *args, **kwargs)

    def form_valid(self, form: Any) -> HttpResponse:
        attempts.was_right(self._name, _address(self.request))
        return super().form_valid(form)

    @property
    def _name(self) -> str:
        return self.request.POST.get("username", "")


class Logout(views.LogoutView):
    """POST only, as Django has it."""


@login_not_required
def admin_login(request: HttpRequest) -> HttpResponse:
    """In place of the admin's own login page: passwords are asked for in one place, which counts the wrong ones."""
    if not request.user.is_authenticated:
        return redirect_to_login(request.GET.get("next") or reverse("admin:index"))
    if not cast(UserRequest, request).user.is_staff:
        raise PermissionDenied
    return redirect("admin:index")


@require_safe
def no_page_of_a_row(request: HttpRequest, row: str) -> HttpResponse:
    """In place of the admin's "view on site": no row has an address, and Django's own fails over ids like ours."""
    raise Http404


def _address(request: HttpRequest) -> str:
    """Of who asks, or of the proxy: headers that tell another one can be made up."""
    return request.META.get("REMOTE_ADDR") or ""


def _shut(request: HttpRequest, template: str, wait: float, **context: Any) -> HttpResponse:
    seconds = ceil(wait)
    response = render(request, template, {**context, "wait": seconds}, status=429)
    response["Retry-After"] = str(seconds)
    return response
