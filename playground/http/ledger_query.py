"""What a question about iterations asks for: engine, epoch, first and last; checked, and refused with true numbers.

Knows: the query's fields and what is kept. Must not know: what is answered.
"""

from __future__ import annotations

from typing import NamedTuple

from django.http import HttpRequest
from django.utils.translation import gettext as _

from inference.serving.client import EngineClient, Span

LARGEST = 2**63 - 1
LONGEST_NAME = 64  # characters of an engine's name, as in a request's row


class BadQuery(Exception):
    """`code` is one of the contract's; the message tells what to change."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Wanted(NamedTuple):
    """Iterations first..last of an engine's epoch."""

    engine: str
    epoch: int
    first: int
    last: int


def number(request: HttpRequest, name: str) -> int | None:
    """None where it is not given."""
    text = request.GET.get(name, "")
    if not text:
        return None
    found = int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else -1
    if not 0 <= found <= LARGEST:
        message = _("%(name)s is %(value)r; it must be a whole number from 0 on.")
        raise BadQuery("bad_params", message % {"name": name, "value": text[:40]})
    return found


async def engine_of(request: HttpRequest, client: EngineClient) -> str:
    """The engine asked for; where none is, one that runs, else one that ran."""
    name = request.GET.get("engine", "")
    known = await client.ledger.engines()
    if name in known and len(name) <= LONGEST_NAME:
        return name
    if name:
        raise BadQuery("not_found", _("Nothing is known of an engine %r.") % name[:LONGEST_NAME])
    alive = [engine.name for engine in await client.engines()]
    if not alive and not known:
        raise BadQuery("not_found", _("No engine has run here yet."))
    return (alive or known)[0]


def span_of(request: HttpRequest, spans: list[Span]) -> Span:
    """What is kept of the epoch asked for, or of the newest one."""
    if not spans:
        raise BadQuery("not_found", _("No iteration of this engine is kept."))
    epoch = number(request, "epoch")
    if epoch is None:
        return spans[-1]
    found = next((span for span in spans if span.epoch == epoch), None)
    if found is None:
        message = _("No iteration of epoch %(epoch)d is kept; epochs from %(oldest)d to %(newest)d are.")
        raise BadQuery("not_found", message % {"epoch": epoch, "oldest": spans[0].epoch, "newest": spans[-1].epoch})
    return found


def wanted_span(request: HttpRequest, engine: str, spans: list[Span], usual: int, most: int) -> Wanted:
    """`first` and `last`; with one of them `usual` iterations from or to it, with none the newest."""
    span = span_of(request, spans)
    first, last = number(request, "first"), number(request, "last")
    if first is None:
        last = span.last if last is None else last
        first = max(0, last - usual + 1)
    elif last is None:
        last = first + usual - 1
    if first > last:
        raise BadQuery(
            "bad_params", _("first is %(first)d and last is %(last)d: no iteration.") % {"first": first, "last": last}
        )
    if last - first >= most:
        message = _("These are %(count)d iterations; at most %(most)d are given at once.")
        raise BadQuery("bad_params", message % {"count": last - first + 1, "most": most})
    return Wanted(engine, span.epoch, max(first, span.first), min(last, span.last))
