"""What the lists are filtered by. The choices are fixed or looked up by an index, so that a filter costs no scan."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from playground.admin.words import FINISHES, REASONS
from playground.models import ApiKey

MOST_KEYS = 30  # names in the list of keys
MOST_OWNERS = 30  # names in the list of owners; others are found by a search


class TimeFilter(admin.SimpleListFilter):
    title = _("created")
    parameter_name = "within"
    spans = (
        ("10m", _("last 10 minutes"), timedelta(minutes=10)),
        ("1h", _("last hour"), timedelta(hours=1)),
        ("1d", _("last 24 hours"), timedelta(days=1)),
        ("7d", _("last 7 days"), timedelta(days=7)),
        ("30d", _("last 30 days"), timedelta(days=30)),
    )

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(word, title) for word, title, _span in self.spans]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        for word, _title, span in self.spans:
            if word == self.value():
                return queryset.filter(created_at__gte=timezone.now() - span)
        return queryset


class OwnerFilter(admin.SimpleListFilter):
    """Those who have something in this list, by name."""

    title = _("owner")
    parameter_name = "owner"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        own = model_admin.model._base_manager.filter(owner=OuterRef("pk"))
        chosen = Q(pk=self.value()) if (self.value() or "").isdecimal() else Q(pk=None)
        owners = User.objects.filter(Exists(own) | chosen).order_by("username")
        return [(str(pk), name) for pk, name in owners.values_list("pk", "username")[:MOST_OWNERS]]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value() or ""
        return queryset.filter(owner=int(value)) if value.isdecimal() and len(value) < 10 else queryset


class KeyFilter(admin.SimpleListFilter):
    """The keys that were used last, and one that a link names."""

    title = _("API key")
    parameter_name = "key"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        chosen = Q(pk=self.value()) if (self.value() or "").isdecimal() else Q(pk=None)
        used = ApiKey.objects.filter(Q(last_used_at__isnull=False) | chosen).order_by("-last_used_at")
        return [(str(key.pk), str(key)) for key in used[:MOST_KEYS]]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value() or ""
        return queryset.filter(key=int(value)) if value.isdecimal() and len(value) < 10 else queryset


class KeyStateFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("valid", _("valid")), ("expired", _("expired")), ("revoked", _("revoked"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        now = timezone.now()
        match self.value():
            case "valid":
                alive = Q(expires_at=None) | Q(expires_at__gt=now)
                return queryset.filter(alive, revoked_at=None, owner__is_active=True)
            case "expired":
                return queryset.filter(revoked_at=None, expires_at__lte=now)
            case "revoked":
                return queryset.filter(revoked_at__isnull=False)
        return queryset


class OneOf(admin.SimpleListFilter):
    """A column that has one of some fixed words."""

    words: dict[str, Any]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return list(self.words.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = {str(self.parameter_name): self.value()}
        return queryset.filter(**chosen) if self.value() in self.words else queryset


class WaitFilter(OneOf):
    title = _("waited for")
    parameter_name = "wait_reason"
    words = REASONS


class FinishFilter(OneOf):
    title = _("finish reason")
    parameter_name = "finish_reason"
    words = FINISHES
