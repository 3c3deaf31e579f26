"""Who may do what in the admin, and the record of who read a text.

Rows are the service's alone to write. What users wrote needs `read_prompts` on top of the right to view, and reading it
leaves a row and a line in the log: who, which, when; never what.
"""

from __future__ import annotations

import logging
import uuid
from datetime import timedelta
from typing import Any, cast

from django.contrib import admin
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.utils import timezone

from playground.http.requests import UserRequest
from playground.models import PromptRead

What = PromptRead.What
ONE_READING = timedelta(minutes=1)  # a page that is loaded again within this is still the same reading
log = logging.getLogger("batchscope.admin")


def user_of(request: HttpRequest) -> User:
    return cast(UserRequest, request).user


def may(request: HttpRequest, codename: str) -> bool:
    """Whether the user holds the permission of that name: read_prompts, replay or cancel_any."""
    return user_of(request).has_perm(f"playground.{codename}")


def may_read_prompts(request: HttpRequest) -> bool:
    return may(request, "read_prompts")


def note_reading(request: HttpRequest, what: str, subject: uuid.UUID | None = None) -> None:
    """Call this before the text is fetched: what can't be written down is not shown."""
    user = user_of(request)
    just_now = PromptRead.objects.filter(
        reader=user, what=what, subject=subject, read_at__gt=timezone.now() - ONE_READING
    )
    if not just_now.exists():
        PromptRead.objects.create(reader=user, reader_name=user.get_username(), what=what, subject=subject)
        log.info("prompt_read: %s %s by user %d", what, subject or "-", user.pk)


class ReadOnly(admin.ModelAdmin):
    """A view of rows that the service alone writes."""

    actions = None
    show_full_result_count = False
    list_per_page = 50

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
