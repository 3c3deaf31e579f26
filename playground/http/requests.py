"""The request as views see it. For type checkers only: LoginRequired lets nobody else through to a view."""

from django.contrib.auth.models import User
from django.http import HttpRequest


class UserRequest(HttpRequest):
    user: User  # type: ignore[assignment]
