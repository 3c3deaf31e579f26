"""What the gateway reads from and writes to the table of requests. Plain synchronous ORM, one transaction a call.

Knows: the states of a row and how it comes to its final one. Must not know: the broker's commands, asyncio, sockets.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Count, Q, QuerySet

from inference.scheduling.request import RequestRefused
from inference.serving.messages import Delta, Finish, Submission
from playground import idempotency
from playground.connections import accept_alone
from playground.figures import figures_of, first_token_ms
from playground.models import FINAL_STATES, UNFINISHED_STATES, IdempotentCall, InferenceRequest

LONGEST_WAIT = 600  # seconds that somebody is told to stay away

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
class Ended:
    """An outcome whose final state was written just now, and for whom. Each request comes to be one once."""

    outcome: Outcome
    owner_id: int
    key_id: int | None
    accepted_at: float  # Unix seconds

    @property
    def receipt(self) -> dict[str, Any]:
        """Of an answer that has gone to nobody yet."""
        finish = self.outcome.finish
        return finish.handed_over(finish.finished_at, self.accepted_at).receipt


@dataclass(frozen=True, slots=True)
class Room:
    """How many requests may wait or run. seconds_each: between the ends of two, as it went lately."""

    in_all: int
    of_one: int | None = None  # of one account; None: no limit
    seconds_each: float = 1.0

    def check(self, more: int, there: Mapping[str, int], owners: Callable[[], int]) -> None:
        """there: how many are there in `all`, and how many are one's `own`. owners: how many accounts have any.
        Raises RequestRefused."""
        if there["all"] + more > self.in_all:
            words = f"{there['all']} requests wait or run, and {self.in_all} are allowed"
            raise self._refusal(words, more, there["all"] + more - self.in_all, self.seconds_each, self.in_all)
        if self.of_one is not None and there["own"] + more > self.of_one:
            words = f"{there['own']} of your requests wait or run, and {self.of_one} of one account are allowed"
            each = self.seconds_each * max(1, owners())  # accounts have equal shares
            raise self._refusal(words, more, there["own"] + more - self.of_one, each, self.of_one)

    def _refusal(self, words: str, more: int, too_many: int, each: float, most: int) -> RequestRefused:
        beside = f"; these would be {more} more" if more > 1 else ""
        if more > most:
            return RequestRefused("queue_full", f"{words}{beside}, which is never possible")
        wait = float(min(LONGEST_WAIT, max(1, ceil(too_many * each))))
        return RequestRefused("queue_full", f"{words}{beside}; try again in {wait:.0f} s", wait)


@dataclass(frozen=True, slots=True)
class Unfinished:
    request_id: str
    state: str
    cancel_requested: bool


def _unfinished() -> QuerySet[InferenceRequest]:
    return InferenceRequest.objects.filter(state__in=UNFINISHED_STATES)  # by its index, however long the history


def create(family: Sequence[InferenceRequest], room: Room, call: IdempotentCall | None = None) -> None:
    """Commit new rows of one owner, all or none, and set how many wait before each. Raises RequestRefused(queue_full)
    where there is no room for them, and MadeAlready where the call that asks for them was made before."""
    with transaction.atomic():
        accept_alone()
        if call is not None:
            idempotency.record(call, family)
        counts = _unfinished().aggregate(
            all=Count("id"),
            waiting=Count("id", filter=Q(state=State.ACCEPTED)),
            own=Count("id", filter=Q(owner_id=family[0].owner_id)),
        )
        room.check(len(family), counts, lambda: _unfinished().values("owner_id").distinct().count())
        for place, row in enumerate(family):
            row.save(force_insert=True)
            row.position = counts["waiting"] + place


def submission_of(row: InferenceRequest, put_back_at: float = 0.0) -> Submission:
    """put_back_at: Unix seconds, where the broker had lost it."""
    return Submission(
        request_id=str(row.pk),
        params={**row.params, "seed": row.seed},
        messages=row.messages,
        prompt=row.prompt,
        prompt_ids=row.prompt_ids,
        user=str(row.owner_id),
        submitted_at=row.received_at or row.created_at.timestamp(),
        put_back_at=put_back_at,
        started_at=_seconds(row.started_at),
        first_token_at=_seconds(row.first_token_at),
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


def apply(running: Iterable[str], outcomes: Sequence[Outcome], begun: Mapping[str, Delta] | None = None) -> list[Ended]:
    """Write state changes, all in one transaction. A final state is written once: later ones find no row to change,
    and are not in what is returned.

    begun: the first deltas of those that run. They tell when that was, should the broker lose all that it knows.
    """
    with transaction.atomic():
        marked = sorted(running)  # rows are locked in one order everywhere, else two processes wait for each other
        for batch in _batches(marked, 500):
            InferenceRequest.objects.filter(pk__in=batch, state=State.ACCEPTED).update(state=State.RUNNING)
        for delta in filter(None, map((begun or {}).get, marked)):
            if delta.started_at:  # else it is not its request's first one
                _unfinished().filter(pk=delta.request_id, started_at=None).update(
                    started_at=_time(delta.started_at), first_token_at=_time(delta.created_at)
                )
        return _end(outcomes)


def _end(outcomes: Sequence[Outcome]) -> list[Ended]:
    ended = []
    open_rows = _open_rows([outcome.finish.request_id for outcome in outcomes])
    for outcome in sorted(outcomes, key=lambda outcome: outcome.finish.request_id):
        request_id = outcome.finish.request_id
        if (found := open_rows.get(request_id)) is None:
            continue
        owner_id, key_id, accepted_at = found
        if _unfinished().filter(pk=request_id).update(**_final_fields(outcome, accepted_at)):
            ended.append(Ended(outcome, owner_id, key_id, accepted_at))
    return ended


def _open_rows(request_ids: Sequence[str]) -> dict[str, tuple[int, int | None, float]]:
    """Owner, key, and when they were accepted (Unix seconds), by id, of those that have no final state yet."""
    found = {}
    for batch in _batches(list(request_ids), 500):
        rows = _unfinished().filter(pk__in=batch).values_list("pk", "owner_id", "key_id", "created_at")
        found |= {str(pk): (owner, key, accepted.timestamp()) for pk, owner, key, accepted in rows}
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
        for request_id, receipt in sorted(receipts.items()):
            final = InferenceRequest.objects.filter(pk=request_id, state__in=FINAL_STATES)
            final.update(receipt=receipt, **figures_of(receipt))


def _ms(start: float, end: float) -> float:
    """Between two times in Unix seconds; 0 where one of them is 0, which is "never"."""
    return round(max(0.0, end - start) * 1000, 3) if start and end else 0.0


def _time(seconds: float) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds else None


def _seconds(time: datetime | None) -> float:
    return time.timestamp() if time else 0.0


def _batches(items: list[str], size: int) -> Iterable[list[str]]:
    return (items[i : i + size] for i in range(0, len(items), size))
