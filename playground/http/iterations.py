"""What happened in which iteration, for the scheduler page: records, block maps, a span to take home. For whoever may
watch the scheduler.

Knows: what may be asked, and how it is answered. Must not know: where the ledger keeps what (serving/client.py).
Records go out as they came in: nothing here reads them but the trace.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import wraps
from typing import Any, cast

import orjson
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.http import content_disposition_header
from django.utils.translation import gettext as _

from inference.serving.client import UNREACHABLE
from playground.access.callers import may_watch
from playground.gateway import get_gateway
from playground.http.errors import json_error, method_not_allowed
from playground.http.ledger_query import BadQuery, Wanted, engine_of, number, span_of, wanted_span
from playground.http.trace import trace_json
from playground.models import InferenceRequest

AT_ONCE = 2000  # iterations in one answer
NEWEST = 300  # of them, where none is named
EXPORTED = 20_000  # in one file
NOT_IN_FILE_NAMES = re.compile(r"[^\w.-]+")

View = Callable[[HttpRequest], Coroutine[Any, Any, HttpResponseBase]]


def for_watchers(view: View) -> View:
    """GET only, JSON errors, the right to watch."""

    @wraps(view)
    async def checked(request: HttpRequest) -> HttpResponseBase:
        if request.method not in ("GET", "HEAD"):
            return method_not_allowed(request, "GET, HEAD")
        if not await sync_to_async(may_watch)(cast(User, await request.auser())):
            return json_error("forbidden", _("Your account has no right to see this page."))
        try:
            return await view(request)
        except BadQuery as error:
            return json_error(error.code, str(error))
        except UNREACHABLE:
            return json_error("engine_unavailable", _("The ledger can't be read at the moment. Try again soon."))

    return checked


@for_watchers
async def iterations(request: HttpRequest) -> HttpResponse:
    """Records of a span, or, with `request`, the span in which a request ran."""
    if request_id := request.GET.get("request"):
        return _json(await _span_of_request(request_id))
    client = get_gateway().client
    ledger, engine = client.ledger, await engine_of(request, client)
    spans = await ledger.spans(engine)
    if not spans and not number(request, "epoch"):
        return _json({"engine": engine, "epoch": 0, "records": [], "oldest": None, "newest": None, "epochs": []})
    wanted = wanted_span(request, engine, spans, NEWEST, AT_ONCE)
    records = await ledger.records(engine, wanted.epoch, wanted.first, wanted.last)
    return _json(
        {
            "engine": engine,
            "epoch": wanted.epoch,
            "records": [orjson.Fragment(record) for record in records],
            "oldest": [spans[0].epoch, spans[0].first],
            "newest": [spans[-1].epoch, spans[-1].last],
            "epochs": [list(span) for span in spans],
        }
    )


@for_watchers
async def blocks(request: HttpRequest) -> HttpResponse:
    """The block map after an iteration, the newest one where none is named."""
    client = get_gateway().client
    ledger, engine = client.ledger, await engine_of(request, client)
    spans = await ledger.spans(engine)
    span = span_of(request, spans)
    n = number(request, "n")
    n = span.last if n is None else n
    found = await ledger.block_map(engine, span.epoch, n) if span.first <= n <= span.last else None
    if found is None:
        message = _("The blocks after iteration %(n)d are not kept; of this epoch there are %(first)d to %(last)d.")
        raise BadQuery("not_found", message % {"n": n, "first": span.first, "last": span.last})
    drawn = await asyncio.to_thread(found.to_json)
    return _json({"engine": engine, "epoch": span.epoch, "n": n, **drawn})


@for_watchers
async def export(request: HttpRequest) -> HttpResponseBase:
    """A span as a file: the records as they are, or a trace for ui.perfetto.dev."""
    form = request.GET.get("format", "json")
    if form not in ("json", "perfetto"):
        raise BadQuery("bad_params", _("format is %r; there are: json, perfetto.") % form[:40])
    client = get_gateway().client
    ledger, engine = client.ledger, await engine_of(request, client)
    wanted = wanted_span(request, engine, await ledger.spans(engine), AT_ONCE, EXPORTED)
    pages = ledger.pages(engine, wanted.epoch, wanted.first, wanted.last)
    body = _records_json(wanted, pages) if form == "json" else trace_json(engine, wanted.epoch, pages)
    answer = StreamingHttpResponse(body, content_type="application/json")
    suffix = "json" if form == "json" else "perfetto.json"
    plain = NOT_IN_FILE_NAMES.sub("_", engine)  # an engine may be called anything
    name = f"batchscope-{plain}-{wanted.epoch}-{wanted.first}-{wanted.last}.{suffix}"
    answer["Content-Disposition"] = content_disposition_header(True, name) or "attachment"
    return answer


async def _records_json(wanted: Wanted, pages: AsyncIterator[list[bytes]]) -> AsyncIterator[bytes]:
    head = orjson.dumps({"engine": wanted.engine, "epoch": wanted.epoch})
    yield head[:-1] + b',"records":[\n'
    between = b""
    async for records in pages:
        yield between + b",\n".join(records)
        between = b",\n"
    yield b"\n]}\n"


def _json(data: Any) -> HttpResponse:
    return HttpResponse(orjson.dumps(data), content_type="application/json")


# A request


async def _span_of_request(text: str) -> dict[str, Any]:
    """Engine, epoch, first and last iteration of a request: from its receipt, or while it runs from what is newest."""
    with contextlib.suppress(ValueError):
        request_id = uuid.UUID(text)
        found = await _told_by_receipt(request_id) or await _seen(str(request_id))
        if found is not None:
            return found
        if await InferenceRequest.objects.filter(pk=request_id).aexists():
            raise BadQuery("not_found", _("This request has run in no iteration that is kept."))
    raise BadQuery("not_found", _("There is no such request."))


async def _told_by_receipt(request_id: uuid.UUID) -> dict[str, Any] | None:
    receipt = await InferenceRequest.objects.filter(pk=request_id).values_list("receipt", flat=True).afirst()
    details = (receipt or {}).get("details")
    if not isinstance(details, dict):  # of another version
        return None
    names = {"engine": "engine", "epoch": "epoch", "first": "first_iteration", "last": "last_iteration"}
    told = {name: details.get(field) for name, field in names.items()}
    return told if all(told.values()) else None


async def _seen(request_id: str) -> dict[str, Any] | None:
    """In the newest records of the engines that run."""
    client = get_gateway().client
    for engine in await client.engines():
        name = request_id.encode()  # most records need not be parsed
        lines = [line for line in await client.newest_iterations(engine.name, AT_ONCE) if name in line.data]
        records = [orjson.loads(line.data) for line in lines]
        seen = [r for r in records if any(row["request_id"] == request_id for row in r["rows"])]
        if seen:
            epoch = seen[-1]["epoch"]
            first = next(r["n"] for r in seen if r["epoch"] == epoch)
            return {"engine": engine.name, "epoch": epoch, "first": first, "last": seen[-1]["n"]}
    return None
