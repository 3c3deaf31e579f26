"""Conversations in the admin. A title is a user's first words, so it counts as a prompt."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from playground.admin.filters import OwnerFilter, TimeFilter
from playground.admin.rights import ReadOnly, What, may_read_prompts, note_reading
from playground.models import Conversation


@admin.register(Conversation)
class ConversationAdmin(ReadOnly):
    list_display = ("id", "owner", "turns", "created_at", "updated_at")
    list_filter = (TimeFilter, OwnerFilter)
    list_select_related = ("owner",)
    search_fields = ("id", "owner__username")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Conversation]:
        return super().get_queryset(request).annotate(turn_count=Count("requests"))

    def get_list_display(self, request: HttpRequest) -> tuple[Any, ...]:
        first, *rest = self.list_display
        return (first, *(("title",) if may_read_prompts(request) else ()), *rest)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        if self.has_view_permission(request) and may_read_prompts(request):
            note_reading(request, What.TITLES)
        return super().changelist_view(request, extra_context)

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> Any:
        if may_read_prompts(request):
            note_reading(request, What.CONVERSATION, context["original"].pk)
        return super().render_change_form(request, context, *args, **kwargs)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return self.get_list_display(request)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return self.get_list_display(request)

    @admin.display(description=_("Turns"), ordering="turn_count")
    def turns(self, row: Any) -> int:
        return row.turn_count
