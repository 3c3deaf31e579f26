"""Calls under a key of their sender's choice (Idempotency-Key): made again, one gets the same answer, and nothing runs
twice, however many come at once and to whichever web process.

Knows: the table of such calls, whose unique constraint decides who is first. Plain synchronous ORM. Must not know:
HTTP, the gateway, what a call asks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import orjson
from django.db import IntegrityError, transaction
from django.utils import timezone

from inference.scheduling.request import RequestRefused
from playground.models import IdempotentCall, InferenceRequest

KEPT = timedelta(hours=24)
LONGEST = 255  # characters of a key
_State = InferenceRequest.State


class MadeAlready(Exception):
    """Another call with this key was there first: look for its requests."""


def hash_of(path: str, body: dict[str, Any]) -> str:
    """The same for the same call, in whatever order its fields were written."""
    return hashlib.sha256(path.encode() + b"\n" + orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()


def earlier(call: IdempotentCall) -> list[InferenceRequest] | None:
    """The requests that an earlier call with this key stands for, in order. None: there is none, it is too old, or it
    had no answer to the end, so that it is to be made anew.

    Raises RequestRefused(conflict) where the key stood for another call.
    """
    young = IdempotentCall.objects.filter(created_at__gt=timezone.now() - KEPT)
    found = young.filter(api_key=call.api_key, key=call.key).first()
    if found is None:
        return None
    if found.body_hash != call.body_hash:
        words = "this Idempotency-Key was used for a call with another body; send a new key with it"
        raise RequestRefused("conflict", words)
    own = InferenceRequest.objects.filter(owner_id=call.api_key.owner_id, key=call.api_key)
    by_id = {str(row.pk): row for row in own.filter(pk__in=found.request_ids)}
    rows = [by_id[request_id] for request_id in found.request_ids if request_id in by_id]
    if len(rows) == len(found.request_ids) and all(map(_is_worth_keeping, rows)):
        return rows
    IdempotentCall.objects.filter(pk=found.pk).delete()
    return None


def _is_worth_keeping(row: InferenceRequest) -> bool:
    return row.state == _State.COMPLETED or (not row.is_final and not row.cancel_requested)


def record(call: IdempotentCall, rows: Sequence[InferenceRequest]) -> None:
    """Beside the rows that it stands for, in their transaction. Forgets what is too old. Raises MadeAlready."""
    IdempotentCall.objects.filter(created_at__lte=timezone.now() - KEPT).delete()
    call.request_ids = [str(row.pk) for row in rows]
    try:
        with transaction.atomic():  # a savepoint: the transaction around it is to go on
            call.save(force_insert=True)
    except IntegrityError:
        raise MadeAlready from None
