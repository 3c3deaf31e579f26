"""The record of who read what users wrote, to look at."""

from __future__ import annotations

from django.contrib import admin
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from playground.admin.paging import BoundedPaginator
from playground.admin.rights import ReadOnly
from playground.models import PromptRead

PAGES = {PromptRead.What.REQUEST: "inferencerequest", PromptRead.What.CONVERSATION: "conversation"}


@admin.register(PromptRead)
class PromptReadAdmin(ReadOnly):
    list_display = ("read_at", "reader_name", "what", "page")
    list_filter = ("what", "read_at")
    search_fields = ("reader_name", "subject")
    fields = readonly_fields = ("read_at", "reader_name", "reader", "what", "page")
    paginator = BoundedPaginator

    @admin.display(description=_("of"))
    def page(self, reading: PromptRead) -> str:
        model = PAGES.get(PromptRead.What(reading.what))
        if model is None or reading.subject is None:
            return "-"
        address = reverse(f"admin:playground_{model}_change", args=(reading.subject,))
        return format_html('<a href="{}">{}</a>', address, reading.subject)
