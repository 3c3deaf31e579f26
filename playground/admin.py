"""The admin's first form: requests and conversations, to look at and never to change.

What users wrote is shown only to those with the permission `read_prompts`; everything else needs `view`. Text of users
and models is text here too: Django's templates escape it, and nothing in this file marks any as safe.
"""

from __future__ import annotations

import json
from typing import Any, cast

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from inference.config import SamplingParams
from playground.http.requests import UserRequest
from playground.models import Conversation, InferenceRequest

DEFAULT_PARAMS = SamplingParams().to_mapping()

admin.site.site_header = admin.site.site_title = "Batchscope"


def may_read_prompts(request: HttpRequest) -> bool:
    return cast(UserRequest, request).user.has_perm("playground.read_prompts")


class ReadOnly(admin.ModelAdmin):
    """A view of rows that the service alone writes."""

    actions = None
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(InferenceRequest)
class InferenceRequestAdmin(ReadOnly):
    list_display = (
        "id",
        "state",
        "owner",
        "created_at",
        "queued",
        "time_to_first_token",
        "total",
        "prompt_tokens",
        "completion_tokens",
        "parameters",
        "error_code",
    )
    list_filter = ("state", "finish_reason", "error_code", "created_at", ("owner", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("owner",)
    search_fields = ("id", "owner__username", "error_code", "error_message", "engine", "ref")
    search_help_text = _("Id, owner, error or engine")
    date_hierarchy = "created_at"
    list_per_page = 50
    prompt_fields = ("asked_messages", "prompt", "prompt_ids", "answer")

    def get_queryset(self, request: HttpRequest) -> QuerySet[InferenceRequest]:
        """Without the right to read prompts they are not even fetched."""
        rows = super().get_queryset(request)
        return rows if may_read_prompts(request) else rows.defer("messages", "prompt", "prompt_ids", "answer")

    def get_search_fields(self, request: HttpRequest) -> tuple[str, ...]:
        """Searching a text one may not read would be a way to read it."""
        return (*self.search_fields, *(("answer", "prompt") if may_read_prompts(request) else ()))

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        fieldsets: list[tuple[Any, dict[str, Any]]] = [
            (None, {"fields": ("id", "owner", "conversation", "ref", "state", "finish_reason", "cancel_requested")}),
            (_("Error"), {"fields": ("error_code", "error_message")}),
            (_("Tokens"), {"fields": ("prompt_tokens", "completion_tokens", "cached_tokens")}),
            (_("Times"), {"fields": ("created_at", "started_at", "first_token_at", "finished_at", "receipt_text")}),
            (_("How it was run"), {"fields": ("parameters", "seed", "engine", "attempts")}),
        ]
        if may_read_prompts(request):
            fieldsets.append((_("What was asked and answered"), {"fields": self.prompt_fields}))
        return fieldsets

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return tuple(name for _title, options in self.get_fieldsets(request, obj) for name in options["fields"])

    @admin.display(description=_("Parameters"))
    def parameters(self, row: InferenceRequest) -> str:
        """Those that differ from the defaults."""
        chosen = {name: value for name, value in row.params.items() if value != DEFAULT_PARAMS.get(name)}
        return ", ".join(f"{name}={_short(json.dumps(value, ensure_ascii=False))}" for name, value in chosen.items())

    @admin.display(description=_("Latency receipt, ms"))
    def receipt_text(self, row: InferenceRequest) -> str:
        return json.dumps(row.receipt, ensure_ascii=False, indent=1)

    @admin.display(description=_("Messages"))
    def asked_messages(self, row: InferenceRequest) -> str:
        return "\n\n".join(f"{message['role']}: {message['content']}" for message in row.messages or ())

    @admin.display(description=_("In queue"))
    def queued(self, row: InferenceRequest) -> str:
        return _seconds(row.created_at, row.started_at)

    @admin.display(description=_("Time to first token"))
    def time_to_first_token(self, row: InferenceRequest) -> str:
        return _seconds(row.created_at, row.first_token_at)

    @admin.display(description=_("In all"))
    def total(self, row: InferenceRequest) -> str:
        return _seconds(row.created_at, row.finished_at)


@admin.register(Conversation)
class ConversationAdmin(ReadOnly):
    list_display = ("id", "owner", "turns", "created_at", "updated_at")
    list_filter = ("created_at", ("owner", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("owner",)
    search_fields = ("id", "owner__username")
    date_hierarchy = "created_at"
    list_per_page = 50

    def get_queryset(self, request: HttpRequest) -> QuerySet[Conversation]:
        return super().get_queryset(request).annotate(turn_count=Count("requests"))

    def get_list_display(self, request: HttpRequest) -> tuple[Any, ...]:
        first, *rest = self.list_display
        return (first, *(("title",) if may_read_prompts(request) else ()), *rest)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """A title is a user's first words, so it counts as a prompt."""
        return self.get_list_display(request)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return self.get_list_display(request)

    @admin.display(description=_("Turns"), ordering="turn_count")
    def turns(self, row: Any) -> int:
        return row.turn_count


def _short(text: str) -> str:
    """A schema may have 64 KiB."""
    return text if len(text) <= 200 else text[:199] + "…"


def _seconds(start: Any, end: Any) -> str:
    return f"{(end - start).total_seconds():.2f} s" if start and end else "-"
