"""Requests in the admin: a list to find the slow one in, and a page each that tells where its time went.

What users wrote is text here: Django's templates escape it, and nothing marks any of it as safe.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from playground.admin.actions import urls_of
from playground.admin.columns import RequestColumns
from playground.admin.filters import FinishFilter, KeyFilter, OwnerFilter, TimeFilter, WaitFilter
from playground.admin.inspection import page_of
from playground.admin.paging import BoundedPaginator
from playground.admin.rights import ReadOnly, What, may, may_read_prompts, note_reading
from playground.admin.search import looks_into_texts, search_requests
from playground.models import InferenceRequest

TEXTS = ("messages", "prompt", "prompt_ids", "answer")
ORDERS = (
    ("slowest", _("Slowest first"), "total"),
    ("waited", _("Longest wait"), "queued"),
    ("first_token", _("Latest first token"), "time_to_first_token"),
    ("caused", _("Cost others most"), "caused"),
)


@admin.register(InferenceRequest)
class InferenceRequestAdmin(RequestColumns, ReadOnly):
    list_display = (
        "request",
        "state_mark",
        "total",
        "queued",
        "waited_for",
        "time_to_first_token",
        "caused",
        "preempted",
        "tokens",
        "end",
        "owner_link",
        "key_link",
        "created",
        "parameters",
    )
    list_filter = ("state", WaitFilter, FinishFilter, TimeFilter, OwnerFilter, KeyFilter)
    list_select_related = ("owner", "key")
    show_facets = admin.ShowFacets.NEVER  # they count everything
    search_fields = ("id",)  # shows the box; search.py says what is searched
    search_help_text = _("Id, owner, client's label or error code")
    paginator = BoundedPaginator

    def get_urls(self) -> list[Any]:
        return [*urls_of(self), *super().get_urls()]

    def get_queryset(self, request: HttpRequest) -> QuerySet[InferenceRequest]:
        """Texts are fetched where they are shown, for those who may read them, and not before."""
        return super().get_queryset(request).defer(*TEXTS, "comparison")

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        in_texts = may_read_prompts(request) and looks_into_texts(search_term)
        if in_texts:
            note_reading(request, What.SEARCH)
        return search_requests(queryset, search_term, in_texts=in_texts), False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        response: Any = super().changelist_view(request, extra_context)
        if changelist := getattr(response, "context_data", {}).get("cl"):
            response.context_data["orders"] = _orders(changelist)
        return response

    # The page

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """What the template does not show by itself."""
        return [
            (None, {"fields": (("owner", "key", "conversation", "ref"),)}),
            (_("How it ended"), {"fields": (("finish_reason", "error_code", "error_message"),)}),
            (_("Tokens"), {"fields": (("prompt_tokens", "completion_tokens", "cached_tokens"),)}),
            (_("Times"), {"fields": (("created", "started", "first_token", "finished"),)}),
            (_("How it was run"), {"fields": (("seed", "engine", "attempts", "preemptions"), "parameters")}),
        ]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return flatten_fieldsets(self.get_fieldsets(request, obj))

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> Any:
        row = context["original"]
        may_read = may_read_prompts(request)
        if may_read:
            note_reading(request, What.REQUEST, row.pk)
        context.update(page_of(row, may_read=may_read))
        context["may_cancel"] = may(request, "cancel_any") and not row.is_final
        context["may_replay"] = may(request, "replay") and row.is_final and row.replay_of_id is None
        return super().render_change_form(request, context, *args, **kwargs)


def _orders(changelist: Any) -> list[dict[str, Any]]:
    """Links that sort the list, each with the greatest first."""
    columns = list(changelist.list_display)
    orders = [("", _("Newest first"), ""), *((name, title, f"-{columns.index(col)}") for name, title, col in ORDERS)]
    chosen = changelist.params.get("o", "")
    return [
        {
            "title": title,
            "query": changelist.get_query_string({"o": key} if key else {}, remove=() if key else ("o",)),
            "chosen": key == chosen,
        }
        for _name, title, key in orders
    ]
