"""Who calls: by an API key and nothing else. Cookies are never looked at.

Must not know: what is called. First who it is (401), then whether they may (403).
"""

from __future__ import annotations

from typing import Any

from channels.db import database_sync_to_async
from django.http import HttpRequest
from ninja.security.base import AuthBase

from playground.access.bearer import bearer_of
from playground.access.callers import Caller, may
from playground.access.keys import caller_of_key
from playground.http.openai.errors import CallError


class ApiKey(AuthBase):
    """`Authorization: Bearer KEY`. scope: what the key must be for; None: any key will do."""

    openapi_type = "http"
    openapi_scheme = "bearer"
    openapi_description = "An API key, made in the admin or by `manage.py createkey`."
    is_async = True

    def __init__(self, scope: str | None) -> None:
        super().__init__()
        self.is_async = True  # the base class has looked for a method of another name
        self.scope = scope

    async def __call__(self, request: HttpRequest) -> Caller:
        """Raises CallError(unauthorized, forbidden)."""
        secret = bearer_of(_headers(request))
        if secret is None:
            raise CallError("unauthorized", "there is no API key; send the header Authorization: Bearer KEY")
        return await database_sync_to_async(self._caller)(secret)

    def _caller(self, secret: str) -> Caller:
        caller = caller_of_key(secret)
        if caller is None:
            raise CallError("unauthorized", "this API key is not valid: it is unknown, too old or revoked")
        if self.scope is not None and not may(caller, self.scope):
            words = f"this API key is not for that; it needs the scope {self.scope}, and its account the right to it"
            raise CallError("forbidden", words)
        return caller


def _headers(request: HttpRequest) -> list[tuple[bytes, bytes]]:
    """As the server got them; Django joins those of one name."""
    scope: dict[str, Any] | None = getattr(request, "scope", None)
    if scope is not None:
        return list(scope["headers"])
    value = request.META.get("HTTP_AUTHORIZATION")
    return [] if value is None else [(b"authorization", value.encode("latin-1"))]
