"""/v1/: the part of OpenAI's API that a text model can answer, for programs with a key.

Knows: routes, who may call them, their order of checks. Must not know: how requests run, how answers are put together.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson
from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from ninja import NinjaAPI
from pydantic import ValidationError

from playground.access.callers import GENERATE
from playground.gate import read_object
from playground.gateway import get_gateway
from playground.http.openai.answers import Answer
from playground.http.openai.auth import ApiKey
from playground.http.openai.calls import Call, accept
from playground.http.openai.errors import CallError, answer_exception
from playground.http.openai.replies import ERRORS, ChatCompletion, Completion, Model, ModelList
from playground.http.openai.requests import ChatCompletionRequest, CompletionRequest, Sampling, invalid
from playground.http.openai.shapes import ChatShape, CompletionShape, Shape
from playground.idempotency import LONGEST
from playground.served import longest_request

FIRST_WORDS_WITHIN = 10.0  # seconds that a stream's status waits for its first words
READ_AT_ONCE = 64 << 10  # bytes of a body that are read on the loop; more would hold up other streams
SSE = "text/event-stream; charset=utf-8"
STARTED_AT = int(time.time())

api = NinjaAPI(
    title="Batchscope",
    version="1",
    description="Chat completions, completions and models, as OpenAI's clients ask for them.",
    openapi_url=None,
    docs_url=None,
    urls_namespace="openai",
)
api.add_exception_handler(Exception, answer_exception)


@api.post(
    "chat/completions", auth=ApiKey(GENERATE), response={200: ChatCompletion, **ERRORS}, summary="Chat completion"
)
async def chat_completions(request: HttpRequest) -> HttpResponseBase:
    """The answer to a conversation. The field `timing` says where its time went, in ms."""
    return await _answer(request, ChatCompletionRequest, ChatShape())


@api.post("completions", auth=ApiKey(GENERATE), response={200: Completion, **ERRORS}, summary="Completion")
async def completions(request: HttpRequest) -> HttpResponseBase:
    """How a text goes on: of one prompt or of several, each a string or a list of token ids."""
    return await _answer(request, CompletionRequest, CompletionShape())


@api.get("models", auth=ApiKey(None), response={200: ModelList, **ERRORS}, summary="Models")
async def models(request: HttpRequest) -> HttpResponseBase:
    """There is one."""
    return JsonResponse({"object": "list", "data": [await _model()]})


@api.get("models/{path:name}", auth=ApiKey(None), response={200: Model, **ERRORS}, summary="One model")
async def model(request: HttpRequest, name: str) -> HttpResponseBase:
    _check_model(name)
    return JsonResponse(await _model())


async def _model() -> dict[str, Any]:
    name = settings.BATCHSCOPE.model_name
    known = {"id": name, "object": "model", "created": STARTED_AT, "owned_by": "batchscope"}
    return {**known, "max_model_len": await longest_request(get_gateway().client)}


def _check_model(name: str | None) -> None:
    """Raises CallError for another model than the one that there is."""
    there_is = settings.BATCHSCOPE.model_name
    if name is not None and name.lower() != there_is.lower():
        raise CallError(
            "model_not_found", f"there is no model {name[:100]!r} here; there is: {there_is}", param="model"
        )


async def _answer(request: HttpRequest, kind: type[Sampling], shape: Shape) -> HttpResponseBase:
    received_at: float = getattr(request, "received_at", 0.0) or time.time()
    body = await _read(request.body, kind)
    _check_model(body.model)
    caller = request.auth  # type: ignore[attr-defined]
    call = await accept(caller, body, received_at, _idempotency_key(request), request.path_info)
    try:
        response = await _response(call, Answer(call, shape), body)
    except Exception as error:
        response = answer_exception(request, error)
    response["X-Request-Id"] = call.request_id
    return response


async def _response(call: Call, answer: Answer, body: Sampling) -> HttpResponseBase:
    """Raises CallError where it can be told by a status."""
    events = call.events()
    if not body.stream:
        return HttpResponse(orjson.dumps(await answer.whole(events)), content_type="application/json")
    begun = await answer.begin(events, FIRST_WORDS_WITHIN)
    response = StreamingHttpResponse(answer.chunks(events, begun, body.wants_usage), content_type=SSE)
    response["X-Accel-Buffering"] = "no"  # nginx would hold it back
    return response


async def _read(raw: bytes, kind: type[Sampling]) -> Sampling:
    """Raises GateError, CallError."""
    if len(raw) > READ_AT_ONCE:
        return await asyncio.to_thread(_parsed, raw, kind)
    return _parsed(raw, kind)


def _parsed(raw: bytes, kind: type[Sampling]) -> Sampling:
    value = read_object(raw, settings.BODY_LIMIT, "the body")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise invalid(error) from None


def _idempotency_key(request: HttpRequest) -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is not None and not 1 <= len(key) <= LONGEST:
        raise CallError("bad_message", f"the Idempotency-Key has {len(key)} characters; it must have 1 to {LONGEST}")
    return key
