"""Texts that are not kept any more: what was asked and answered, and titles. The rows stay, with their figures.

Knows: which columns hold what people and models wrote. Must not know: who asks for it.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta
from typing import Any

from channels.db import database_sync_to_async
from django.db import DatabaseError, transaction
from django.db.models import Q
from django.utils import timezone

from playground.models import FINAL_STATES, UNFINISHED_STATES, Conversation, InferenceRequest

FORGET_EVERY = 3600.0  # seconds
AT_ONCE = 200  # rows in one transaction: others write meanwhile
NO_TEXT: dict[str, Any] = {
    "messages": None,
    "prompt": None,
    "prompt_ids": None,
    "answer": "",
    "error_message": "",  # may say what was wrong with a text
    "ref": "",
}
TEXT_PARAMS = ("stop", "response_format")
log = logging.getLogger("batchscope.retention")


def forget(days: float) -> int:
    """Blank the texts of requests that are over and older than that, and delete conversations in which nothing was said
    since. How many requests lost their texts."""
    before = timezone.now() - timedelta(days=days)
    conversations = _forget_conversations(before)
    requests = 0
    while batch := list(_with_texts(before).only("pk", "params")[:AT_ONCE]):
        with transaction.atomic():
            for row in batch:
                params = {name: value for name, value in row.params.items() if name not in TEXT_PARAMS}
                InferenceRequest.objects.filter(pk=row.pk).update(params=params, **NO_TEXT)
        requests += len(batch)
    if requests or conversations:
        log.info("texts_forgotten: %d requests, %d conversations", requests, conversations)
    return requests


def _with_texts(before: datetime) -> Any:
    texts = Q(messages__isnull=False) | Q(prompt__isnull=False) | Q(prompt_ids__isnull=False) | ~Q(answer="")
    return InferenceRequest.objects.filter(texts, created_at__lt=before, state__in=FINAL_STATES)


def _forget_conversations(before: datetime) -> int:
    """Their requests stay, outside of any conversation."""
    running = InferenceRequest.objects.filter(state__in=UNFINISHED_STATES, conversation__isnull=False)
    old = Conversation.objects.filter(updated_at__lt=before).exclude(pk__in=running.values("conversation"))
    forgotten = 0
    while batch := list(old.values_list("pk", flat=True)[:AT_ONCE]):
        with transaction.atomic():
            InferenceRequest.objects.filter(conversation__in=batch).update(conversation=None)
            Conversation.objects.filter(pk__in=batch).delete()
        forgotten += len(batch)
    return forgotten


async def forget_hourly(days: float) -> None:
    """`forget`, now and every hour, until cancelled."""
    while True:
        try:
            await database_sync_to_async(forget)(days)
        except DatabaseError as error:
            log.warning("forgetting_delayed: %s", type(error).__name__)
        await asyncio.sleep(FORGET_EVERY)
