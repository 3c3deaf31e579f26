"""Errors in the shape of OpenAI's API: {"error": {"message", "type", "param", "code"}}, each with its status.

Knows: codes of the contract, their statuses, what clients read besides (Retry-After). Must not know: what was asked.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from django.core.exceptions import DisallowedHost
from django.db import DatabaseError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from ninja.errors import AuthenticationError

from inference.config import ParameterError, SamplingParams
from inference.scheduling.request import RequestRefused
from inference.serving.client import UNREACHABLE
from playground import metrics
from playground.gate import GateError
from playground.http.errors import STATUS_OF_CODE

log = logging.getLogger(__name__)

INTERNAL = "Something went wrong on the server. The log has the details."
STATUS = {**STATUS_OF_CODE, "model_not_found": 404, "numerical_error": 500, "expired": 503}
RETRY_AFTER = {"queue_full": 1.0, "rate_limited": 1.0, "engine_unavailable": 2.0, "draining": 5.0}  # seconds
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class CallError(Exception):
    """A call that is not answered. code: one of STATUS.  param: the field to change.  retry_after: seconds; None: as
    usual for the code.  for_good: the same call will be refused again, whatever its status makes clients think."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        for_good: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code if code in STATUS else "internal"
        self.param, self.for_good = param, for_good
        usual = None if for_good else RETRY_AFTER.get(self.code)
        self.retry_after = usual if retry_after is None else retry_after

    @property
    def status(self) -> int:
        return STATUS[self.code]

    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def as_call_error(error: Exception) -> CallError:
    """What a client is told. What nobody has thought of is logged, and told as `internal`."""
    match error:
        case CallError():
            return error
        case RequestRefused():
            return CallError(error.code, str(error), retry_after=error.retry_after, for_good=error.retry_after is None)
        case GateError():
            return CallError(error.code, str(error))
        case ParameterError():
            return CallError("bad_params", str(error), param=param_of(str(error)))
        case AuthenticationError():
            return CallError("unauthorized", "send a valid API key: Authorization: Bearer KEY")
        case Http404():
            return CallError("not_found", "there is nothing at this address")
        case DisallowedHost():
            return CallError("bad_message", "the Host header names another service than this one")
    if isinstance(error, (DatabaseError, *UNREACHABLE)):
        log.warning("call_failed: %s", type(error).__name__, extra={"code": "engine_unavailable"})
        return CallError("engine_unavailable", "the service can't take calls just now; send it again later")
    log.error("call_failed", exc_info=error, extra={"code": "internal"})
    return CallError("internal", INTERNAL)


def error_response(error: CallError) -> HttpResponse:
    """With the header that tells clients to stay away for a while, or for ever."""
    metrics.refused(error.code)
    response = JsonResponse(error.body(), status=error.status)
    if error.retry_after is not None:
        response["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    if error.code == "unauthorized":
        response["WWW-Authenticate"] = "Bearer"
    if error.for_good:
        response["X-Should-Retry"] = "false"  # OpenAI's clients send a 409 or 429 again, whatever it says
    return response


def answer_exception(request: HttpRequest, error: Any) -> HttpResponse:
    """Whatever was raised on the way to an answer."""
    return error_response(as_call_error(error))


def param_of(message: str) -> str | None:
    """Sentences about parameters begin with their name, or name it after the thing in it that is wrong."""
    named = message.removeprefix("a token id of ").removeprefix("a ").split(" ", 1)[0].removesuffix(":")
    return named if named in SamplingParams.__dataclass_fields__ else None


def not_allowed(request: HttpRequest, allowed: str) -> HttpResponse:
    """allowed: methods that would do, with commas between."""
    error = CallError("method_not_allowed", f"this address answers to {allowed}, not to {str(request.method)[:20]}")
    response = error_response(error)
    response["Allow"] = allowed
    return response
