"""Quotas of accounts: on a page of their own, for who may set them without changing accounts, and on the account's.
Nobody but a superuser sets the own one.

Knows: the columns, and what is used of a quota now. Must not know: how it is counted.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, cast

from asgiref.sync import async_to_sync
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from playground.access.limits import FIELDS as QUOTA_FIELDS
from playground.admin.rights import user_of
from playground.gateway import get_gateway
from playground.models import AccountQuota, Quota

__all__ = ["QUOTA_FIELDS", "QuotaInline", "quotas_shown", "usage_of"]
EMPTY = _("An empty field: as the service's settings say. They are not for superusers.")


def quotas_shown(quota: Quota) -> str:
    """Those that there are, by the names of their columns."""
    chosen = [(name, value) for name in QUOTA_FIELDS if (value := getattr(quota, name)) is not None]
    return (
        ", ".join(gettext("%(number)d %(what)s") % {"number": value, "what": _title(name)} for name, value in chosen)
        or "-"
    )


def usage_of(user_id: int | None = None, key_id: int | None = None) -> str:
    """What is used now, of each limit: "12 of 60 requests a minute"."""
    try:
        limiter = get_gateway().limiter
    except ImproperlyConfigured:
        return "-"
    account, key = limiter.look_up(user_id, key_id)
    told = [
        gettext("%(used)d of %(most)d %(what)s") % {"used": used, "most": limit.most, "what": _title(limit.field)}
        for limit, used in async_to_sync(limiter.usage)((*account, *key))
    ]
    return ", ".join(told) or "-"


def _title(field: str) -> str:
    return str(cast(Any, AccountQuota._meta.get_field(field)).verbose_name)


class QuotaInline(admin.StackedInline):
    model = AccountQuota
    fields = (QUOTA_FIELDS[:2], QUOTA_FIELDS[2:])
    verbose_name = verbose_name_plural = _("quota of this account")


@admin.register(AccountQuota)
class AccountQuotaAdmin(admin.ModelAdmin):
    list_display = ("user", *QUOTA_FIELDS)
    list_select_related = ("user",)
    search_fields = ("user__username",)
    fieldsets = ((None, {"fields": ("user", QUOTA_FIELDS[:2], QUOTA_FIELDS[2:], "usage"), "description": EMPTY}),)

    class Media:
        css = MappingProxyType({"all": ("dist/admin.css",)})

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("usage",) if obj is None else ("user", "usage")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_change_permission(request, obj) and (obj is None or _may_set(request, obj.user))

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_delete_permission(request, obj) and (obj is None or _may_set(request, obj.user))

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "user":
            others = User.objects.filter(quota=None).order_by("username")
            kwargs["queryset"] = others if _may_set(request) else others.exclude(pk=user_of(request).pk)
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    @admin.display(description=_("used now"))
    def usage(self, quota: AccountQuota) -> str:
        return usage_of(user_id=quota.user.pk) if quota.pk else "-"


def _may_set(request: HttpRequest, user: User | None = None) -> bool:
    """Whether the quota of `user`, or of oneself, is one's to set."""
    return user_of(request).is_superuser or (user is not None and user != user_of(request))
