"""The life of requests, told as it happens: each event is a count and a log line. Never what was asked or answered.

Knows: which events there are, what may be said of them. Must not know: where they happen (the gateway), how counts and
lines are kept. Accepted and finished are one line each at INFO; all else is DEBUG, or WARNING where something is wrong.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator, Sequence

from django.db import DatabaseError

from inference.config import RequestRefused
from playground import metrics
from playground.models import InferenceRequest
from playground.rows import Ended

log = logging.getLogger("batchscope.requests")


def accepted(family: Sequence[InferenceRequest]) -> None:
    """They are durable."""
    metrics.requests_accepted(len(family))
    for row in family:
        extra = {"request_id": str(row.pk), "user": row.owner_id, "waiting": row.position}
        log.info("accepted", extra=extra if row.key_id is None else {**extra, "key": row.key_id})


@contextlib.contextmanager
def refusals(user: int | None, count: int) -> Generator[None]:
    """Around the acceptance of `count` requests of that account: what is refused has no row."""
    try:
        yield
    except RequestRefused as error:
        _refused(error.code, user, count)
        raise
    except DatabaseError:
        _refused("engine_unavailable", user, count)
        raise


def _refused(code: str, user: int | None, count: int) -> None:
    metrics.requests_refused(code, count)
    log.debug("refused", extra={"code": code, "user": user, "count": count})


def ended(ends: Sequence[Ended]) -> None:
    """Rows that have got their final state just now."""
    metrics.requests_ended((one.outcome.finish, one.receipt) for one in ends)
    for one in ends:
        finish = one.outcome.finish
        extra = {
            "request_id": finish.request_id,
            "reason": finish.finish_reason,
            "prompt_tokens": finish.prompt_tokens,
            "completion_tokens": finish.completion_tokens,
            "ms": round(one.receipt.get("total", 0.0), 1),
            "engine": finish.engine,
        }
        log.info("finished", extra={**extra, "code": finish.error_code} if finish.error_code else extra)


def first_delta(request_id: str, seconds: float) -> None:
    """Its first words are with whoever asked, so long after it came."""
    metrics.first_delta_after(seconds)
    log.debug("first_delta", extra={"request_id": request_id, "ms": round(1000 * seconds, 1)})


def cancel_asked(request_id: str) -> None:
    """By its owner, by staff, or because nobody reads it any more."""
    log.debug("cancel_asked", extra={"request_id": request_id})


def put_back(request_ids: Sequence[str]) -> None:
    """The broker had lost them."""
    metrics.requests_put_back(len(request_ids))
    log.warning("requests_put_back: %d", len(request_ids))
    for request_id in request_ids:
        log.debug("put_back", extra={"request_id": request_id})
