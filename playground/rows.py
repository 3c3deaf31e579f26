"""What the gateway reads from and writes to the table of requests. Plain synchronous ORM, one transaction a call.

Knows: the states of a row and how it comes to its final one. Must not know: the broker's commands, asyncio, sockets.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Count, Q, QuerySet

from inference.scheduling.request import RequestRefused
from inference.serving.messages import Finish, Submission
from playground.figures import figures_of, first_token_ms
from playground.models import FINAL_STATES, UNFINISHED_STATES, InferenceRequest

State = InferenceRequest.State
_FINAL_STATE = {
    "stop": State.COMPLETED,
    "length": State.COMPLETED,
    "cancelled": State.CANCELLED,
    "expired": State.EXPIRED,
    "error": State.FAILED,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended, as its log has it."""

    finish: Finish
    answer: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Unfinished:
    request_id: str
    state: str
    cancel_requested: bool


def _unfinished() -> QuerySet[InferenceRequest]:
    return InferenceRequest.objects.filter(state__in=UNFINISHED_STATES)  # by its index, however long the history


def create(family: Sequence[InferenceRequest], queue_limit: int) -> None:
    """Commit new rows, all or none, and set how many wait before each. Raises RequestRefused(queue_full)."""
    with transaction.atomic():
        counts = _unfinished().aggregate(all=Count("id"), waiting=Count("id", filter=Q(state=State.ACCEPTED)))
        if counts["all"] + len(family) > queue_limit:
            more = f"these would be {len(family)} more" if len(family) > 1 else "try again later"
            raise RequestRefused(
                "queue_full", f"{counts['all']} requests wait or run, and {queue_limit} are allowed; {more}"
            )
        for place, row in enumerate(family):
            row.save(force_insert=True)
            row.position = counts["waiting"] + place


def submission_of(row: InferenceRequest) -> Submission:
    return Submission(
        request_id=str(row.pk),
        params={**row.params, "seed": row.seed},
        messages=row.messages,
        prompt=row.prompt,
        prompt_ids=row.prompt_ids,
        user=str(row.owner_id),
        submitted_at=row.received_at or row.created_at.timestamp(),
    )


def owned(user: User, request_id: str) -> InferenceRequest | None:
    """A replay is nobody's in this sense: what it says may be another user's secret."""
    try:
        return InferenceRequest.objects.filter(owner=user, pk=uuid.UUID(request_id), replay_of=None).first()
    except ValueError:
        return None


def unfinished() -> list[Unfinished]:
    """Oldest first, so that what is put back keeps its order."""
    rows = _unfinished().order_by("created_at").values_list("pk", "state", "cancel_requested")
    return [Unfinished(str(pk), state, cancel) for pk, state, cancel in rows]


def by_ids(request_ids: Sequence[str]) -> list[InferenceRequest]:
    return list(_unfinished().filter(pk__in=request_ids).order_by("created_at"))


def ask_cancel(request_id: str) -> None:
    _unfinished().filter(pk=request_id).update(cancel_requested=True)


def apply(running: Iterable[str], outcomes: Sequence[Outcome]) -> None:
    """Write state changes, all in one transaction. A final state is written once: later ones find no row to change."""
    with transaction.atomic():
        for batch in _batches(list(running), 500):
            InferenceRequest.objects.filter(pk__in=batch, state=State.ACCEPTED).update(state=State.RUNNING)
        accepted = _accepted_at([outcome.finish.request_id for outcome in outcomes])
        for outcome in outcomes:
            request_id = outcome.finish.request_id
            _unfinished().filter(pk=request_id).update(**_final_fields(outcome, accepted.get(request_id, 0.0)))


def _accepted_at(request_ids: Sequence[str]) -> dict[str, float]:
    """Unix seconds by id, of those that have no final state yet."""
    found: dict[str, float] = {}
    for batch in _batches(list(request_ids), 500):
        times = _unfinished().filter(pk__in=batch).values_list("pk", "created_at")
        found |= {str(pk): accepted.timestamp() for pk, accepted in times}
    return found


def _final_fields(outcome: Outcome, accepted_at: float) -> dict[str, Any]:
    finish = outcome.finish
    receipt = finish.handed_over(finish.finished_at, accepted_at).receipt  # it goes to nobody yet
    figures = figures_of(receipt)
    return {
        "state": _FINAL_STATE.get(finish.finish_reason, State.FAILED),
        "finish_reason": finish.finish_reason,
        "error_code": finish.error_code,
        "error_message": finish.error_message,
        "answer": outcome.answer.replace("\0", "\ufffd"),  # PostgreSQL keeps no NUL in a text
        "prompt_tokens": finish.prompt_tokens,
        "completion_tokens": finish.completion_tokens,
        "cached_tokens": finish.cached_tokens,
        "receipt": receipt,
        **figures,
        "ttft_ms": first_token_ms(receipt) or _ms(accepted_at, finish.first_token_at),
        "total_ms": figures["total_ms"] or _ms(accepted_at, finish.finished_at or time.time()),
        "engine": finish.engine,
        "attempts": outcome.attempts,
        "started_at": _time(finish.started_at),
        "first_token_at": _time(finish.first_token_at),
        "finished_at": _time(finish.finished_at) or datetime.now(UTC),
    }


def correct(receipts: Mapping[str, dict[str, Any]]) -> None:
    """Receipts by request id, once their last frames are on their way. Of rows that have their final state."""
    with transaction.atomic():
        for request_id, receipt in receipts.items():
            final = InferenceRequest.objects.filter(pk=request_id, state__in=FINAL_STATES)
            final.update(receipt=receipt, **figures_of(receipt))


def _ms(start: float, end: float) -> float:
    """Between two times in Unix seconds; 0 where one of them is 0, which is "never"."""
    return round(max(0.0, end - start) * 1000, 3) if start and end else 0.0


def _time(seconds: float) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds else None


def _batches(items: list[str], size: int) -> Iterable[list[str]]:
    return (items[i : i + size] for i in range(0, len(items), size))
