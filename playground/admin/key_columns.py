"""What the list and the page of API keys say in one cell. Must not know: who looks."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from playground.admin.quotas import quotas_shown, usage_of
from playground.admin.words import moment
from playground.models import SCOPES, ApiKey


class KeyColumns:
    @admin.display(description=gettext_lazy("begins with"), ordering="prefix")
    def begins(self, key: ApiKey) -> SafeString:
        return format_html("<code>{}…</code>", key.prefix)

    @admin.display(description=gettext_lazy("state"))
    def state(self, key: ApiKey) -> SafeString:
        word, title = state_of(key)
        return format_html('<span class="state state-{}">{}</span>', word, title)

    @admin.display(description=gettext_lazy("may do"))
    def opens(self, key: ApiKey) -> str:
        return ", ".join(scope for scope in SCOPES if scope in key.scopes)

    @admin.display(description=gettext_lazy("quotas"))
    def quotas(self, key: ApiKey) -> str:
        return quotas_shown(key)

    @admin.display(description=gettext_lazy("last used"), ordering="last_used_at")
    def last_used(self, key: ApiKey) -> str:
        return moment(key.last_used_at)[:16] if key.last_used_at else _("never")

    @admin.display(description=gettext_lazy("expires"), ordering="expires_at")
    def expires(self, key: ApiKey) -> str:
        return moment(key.expires_at)[:16] if key.expires_at else _("at no time")

    @admin.display(description=gettext_lazy("created"), ordering="created_at")
    def created(self, key: ApiKey) -> str:
        return moment(key.created_at)[:16]

    @admin.display(description=gettext_lazy("used now"))
    def usage(self, key: ApiKey) -> str:
        return usage_of(key_id=key.pk)

    @admin.display(description=gettext_lazy("requests"))
    def requests_link(self, key: ApiKey) -> SafeString:
        address = reverse("admin:playground_inferencerequest_changelist")
        return format_html('<a href="{}?key={}">{}</a>', address, key.pk, _("Requests that came with it"))


def state_of(key: ApiKey) -> tuple[str, Any]:
    """A word for the style sheet, and one for people."""
    if key.revoked_at is not None:
        return "failed", _("revoked")
    if key.expires_at is not None and key.expires_at <= timezone.now():
        return "expired", _("expired")
    return ("completed", _("valid")) if key.owner.is_active else ("cancelled", _("account closed"))
