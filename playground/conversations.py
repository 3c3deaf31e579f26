"""Conversations of an owner: the look-ups and changes that the JSON API and the sockets share.

Every look-up goes through the owner (R20). Must not know: HTTP, sockets, the broker.
"""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.utils import timezone

from playground.models import UNFINISHED_STATES, Conversation, InferenceRequest

TITLE_LENGTH = 200
AUTOMATIC_TITLE_LENGTH = 60
_TIMES = ("created_at", "started_at", "first_token_at", "finished_at")


def as_uuid(text: str) -> uuid.UUID | None:
    """The id that `text` writes in the usual form, or None."""
    try:
        value = uuid.UUID(text)
    except (ValueError, AttributeError, TypeError):
        return None
    return value if str(value) == text.lower() else None


def conversations_of(user: User) -> QuerySet[Conversation]:
    return Conversation.objects.filter(owner=user)


def unfinished(conversation: Conversation) -> QuerySet[InferenceRequest]:
    return conversation.requests.filter(state__in=UNFINISHED_STATES)


def one_line(text: str, length: int) -> str:
    """`text` as a title: one line, at most `length` characters."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"


def touch(conversation: Conversation, said: str) -> None:
    """Puts a conversation that was just used on top; its first words become the title of one that has none."""
    Conversation.objects.filter(pk=conversation.pk).update(updated_at=timezone.now())
    Conversation.objects.filter(pk=conversation.pk, title="").update(title=one_line(said, AUTOMATIC_TITLE_LENGTH))


def conversation_json(conversation: Conversation) -> dict[str, Any]:
    return {
        "id": str(conversation.pk),
        "title": conversation.title,
        "created_at": conversation.created_at.isoformat(),
        "updated_at": conversation.updated_at.isoformat(),
    }


def turn_json(request: InferenceRequest) -> dict[str, Any]:
    """One turn. `text` is there once the state is final; before, the request's log has it: resume with after_seq 0."""
    error = {"code": request.error_code, "message": request.error_message} if request.error_code else None
    return {
        "request_id": str(request.pk),
        "ref": request.ref,
        "depth": request.depth,
        "user": request.asked,
        "text": request.answer,
        "state": request.state,
        "finish_reason": request.finish_reason or None,
        "error": error,
        "params": {**request.params, "seed": request.seed},
        "usage": {
            "prompt_tokens": request.prompt_tokens,
            "completion_tokens": request.completion_tokens,
            "cached_tokens": request.cached_tokens,
        },
        "receipt": request.receipt or None,
        **{
            name: _time(getattr(request, name))
            for name in ("created_at", "started_at", "first_token_at", "finished_at")
        },
    }


def _time(value: Any) -> str | None:
    return value.isoformat() if value else None
