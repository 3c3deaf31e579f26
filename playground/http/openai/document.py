"""The API's OpenAPI document: what django-ninja knows of it, and the bodies, which are read without its help.

Open to accounts that are signed in and to programs with a key.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, JsonResponse
from django.http.response import HttpResponseBase
from pydantic.json_schema import models_json_schema

from playground.http.errors import only_read
from playground.http.openai.api import api
from playground.http.openai.auth import ApiKey
from playground.http.openai.errors import CallError, answer_exception
from playground.http.openai.requests import ChatCompletionRequest, CompletionRequest

BODIES = {"/v1/chat/completions": ChatCompletionRequest, "/v1/completions": CompletionRequest}
EXAMPLES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        **{"max_tokens": 64, "temperature": 0},
    },
    "/v1/completions": {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0},
}
_REFERENCE = "#/components/schemas/{model}"
_IDEMPOTENCY = {
    "in": "header",
    "name": "Idempotency-Key",
    "required": False,
    "description": "a call that is made again under the same key gets the same answer, for 24 hours",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}
_STREAM = {"schema": {"type": "string", "description": "`data:` and a chunk as JSON, each; at last `data: [DONE]`"}}


@lru_cache(maxsize=1)
def openapi() -> dict[str, Any]:
    document: dict[str, Any] = dict(api.get_openapi_schema(path_prefix="/v1/"))
    _, schemas = models_json_schema([(body, "validation") for body in BODIES.values()], ref_template=_REFERENCE)
    document["components"]["schemas"] |= schemas["$defs"]
    for path, body in BODIES.items():
        operation = document["paths"][path]["post"]
        schema = {"$ref": _REFERENCE.format(model=body.__name__)}
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema, "example": EXAMPLES[path]}},
        }
        operation["parameters"] = [*operation["parameters"], _IDEMPOTENCY]
        operation["responses"][200]["content"]["text/event-stream"] = _STREAM
    return document


@login_not_required
@only_read
async def document(request: HttpRequest) -> HttpResponseBase:
    try:
        if "Authorization" in request.headers:
            await ApiKey(None)(request)
        elif not (await request.auser()).is_authenticated:
            raise CallError("unauthorized", "sign in first, or send an API key: Authorization: Bearer KEY")
    except Exception as error:
        return answer_exception(request, error)
    return JsonResponse(openapi())
