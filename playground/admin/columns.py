"""What the list and the page of requests say in one cell: durations to scan, links, states.

Knows: a row and how it reads. Must not know: who looks. What users wrote (a stop string, a name) is escaped.
"""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from inference.config import SamplingParams
from playground.admin.timeline import parts_lane
from playground.admin.words import duration, moment, reason_of, short_id
from playground.models import InferenceRequest

DEFAULT_PARAMS = SamplingParams().to_mapping()


class RequestColumns:
    @admin.display(description=_("request"))
    def request(self, row: InferenceRequest) -> str:
        return f"{short_id(row.pk)} ↻" if row.replay_of_id else short_id(row.pk)

    @admin.display(description=_("state"), ordering="state")
    def state_mark(self, row: InferenceRequest) -> SafeString:
        return format_html('<span class="state state-{}">{}</span>', row.state, row.get_state_display())

    @admin.display(description=_("owner"))
    def owner_link(self, row: InferenceRequest) -> SafeString:
        address = reverse("admin:playground_inferencerequest_changelist")
        return format_html('<a href="{}?owner={}">{}</a>', address, row.owner_id, row.owner)

    @admin.display(description=_("API key"))
    def key_link(self, row: InferenceRequest) -> str:
        if row.key is None:
            return "-"
        address = reverse("admin:playground_inferencerequest_changelist")
        return format_html('<a href="{}?key={}">{}</a>', address, row.key_id, row.key.name)

    @admin.display(description=_("created"), ordering="created_at")
    def created(self, row: InferenceRequest) -> str:
        return moment(row.created_at)

    @admin.display(description=_("started"))
    def started(self, row: InferenceRequest) -> str:
        return moment(row.started_at)

    @admin.display(description=_("first token"))
    def first_token(self, row: InferenceRequest) -> str:
        return moment(row.first_token_at)

    @admin.display(description=_("finished"))
    def finished(self, row: InferenceRequest) -> str:
        return moment(row.finished_at)

    @admin.display(description=_("in all"), ordering="total_ms")
    def total(self, row: InferenceRequest) -> str:
        if not row.total_ms:
            return "-"
        context = {"time": duration(row.total_ms), "parts": parts_lane(row.receipt)}
        return render_to_string("admin/playground/inferencerequest/bar.html", context)

    @admin.display(description=_("in queue"), ordering="queue_ms")
    def queued(self, row: InferenceRequest) -> str:
        return _time(row.queue_ms)

    @admin.display(description=_("waited for"))
    def waited_for(self, row: InferenceRequest) -> Any:
        return reason_of(row.wait_reason) or "-"

    @admin.display(description=_("time to first token"), ordering="ttft_ms")
    def time_to_first_token(self, row: InferenceRequest) -> str:
        return _time(row.ttft_ms)

    @admin.display(description=_("ms caused to others"), ordering="caused_ms")
    def caused(self, row: InferenceRequest) -> str:
        return _time(row.caused_ms)

    @admin.display(description=_("preemptions"))
    def preempted(self, row: InferenceRequest) -> Any:
        return row.preemptions or "-"

    @admin.display(description=_("Tokens"))
    def tokens(self, row: InferenceRequest) -> str:
        return f"{row.prompt_tokens} → {row.completion_tokens}"

    @admin.display(description=_("finish reason"))
    def end(self, row: InferenceRequest) -> str:
        return row.error_code or row.finish_reason or "-"

    @admin.display(description=_("Parameters"))
    def parameters(self, row: InferenceRequest) -> str:
        """Those that differ from the defaults."""
        chosen = {name: value for name, value in row.params.items() if value != DEFAULT_PARAMS.get(name)}
        return ", ".join(f"{name}={_short(json.dumps(value, ensure_ascii=False))}" for name, value in chosen.items())


def _time(ms: float) -> str:
    return duration(ms) if ms else "-"


def _short(text: str) -> str:
    """A schema may have 64 KiB."""
    return text if len(text) <= 200 else text[:199] + "…"
