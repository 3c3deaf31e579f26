"""API keys in the admin: made here, shown once, revoked here.

Knows: who may see and change which keys. Must not know: how a key is hashed or checked.

Each staff account makes, sees and revokes keys of its own. To see the keys of all needs `view_apikey`, to change and
revoke them `change_apikey`. Only a superuser makes a key for somebody else, or has one open more or for longer: whoever
has a key of an account can do and read what that account can, and the right to read prompts must not be had that way.
"""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.forms import ModelForm, ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_POST

from playground.access.keys import create_key, revoke
from playground.admin.filters import KeyStateFilter, OwnerFilter
from playground.admin.key_columns import KeyColumns
from playground.admin.quotas import QUOTA_FIELDS
from playground.admin.rights import may, user_of
from playground.models import SCOPES, ApiKey

log = logging.getLogger("batchscope.admin")


class ApiKeyForm(ModelForm):
    """A key opens something, and not only in the past."""

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if set(SCOPES) <= set(self.fields) and not any(cleaned.get(scope) for scope in SCOPES):
            raise ValidationError(_("Choose at least one thing that the key may do."))
        expires_at = cleaned.get("expires_at")
        if "expires_at" in self.changed_data and expires_at is not None and expires_at <= timezone.now():
            self.add_error("expires_at", _("This time is over."))
        return cleaned


@admin.register(ApiKey)
class ApiKeyAdmin(KeyColumns, admin.ModelAdmin):
    form = ApiKeyForm
    list_display = ("name", "begins", "state", "last_used", "owner", "opens", "expires", "created", "quotas")
    list_filter = (KeyStateFilter, *SCOPES)
    list_select_related = ("owner",)
    list_per_page = 50
    show_full_result_count = False
    search_fields = ("name", "prefix", "owner__username")
    search_help_text = gettext_lazy("Name, first characters or owner")
    actions = ("revoke_selected",)
    change_form_template = "admin/playground/apikey/change_form.html"

    class Media:
        css = MappingProxyType({"all": ("dist/admin.css",)})

    # Who may do what

    def get_queryset(self, request: HttpRequest) -> QuerySet[ApiKey]:
        keys = super().get_queryset(request)
        return keys if _sees_all(request) else keys.filter(owner=user_of(request))

    def has_module_permission(self, request: HttpRequest) -> bool:
        return _is_staff(request)

    def has_view_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        return _sees_all(request) or (_is_staff(request) and _is_own(request, obj))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return _is_staff(request)

    def has_change_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        return may(request, "change_apikey") or (_is_staff(request) and _is_own(request, obj))

    # The list

    def get_list_filter(self, request: HttpRequest) -> Any:
        """Who has keys is not for everybody to know."""
        return (*self.list_filter, OwnerFilter) if _sees_all(request) else self.list_filter

    @admin.action(description=gettext_lazy("Revoke the selected keys"), permissions=["change"])
    def revoke_selected(self, request: HttpRequest, keys: QuerySet[ApiKey]) -> None:
        valid = [key for key in keys if key.revoked_at is None and self.has_change_permission(request, key)]
        for key in valid:
            _revoke(request, key)
        words = ngettext("%d key is revoked.", "%d keys are revoked.", len(valid))
        messages.success(request, words % len(valid))

    # The page

    def get_fieldsets(self, request: HttpRequest, obj: ApiKey | None = None) -> Any:
        about = ["name", *(["owner"] if obj is not None or user_of(request).is_superuser else ()), "expires_at"]
        if obj is not None:
            about[2:] = ["begins", "state", "expires_at", "last_used", "created", "requests_link"]
        quota = [QUOTA_FIELDS[:2], QUOTA_FIELDS[2:], *(["usage"] if obj is not None else [])]
        return [
            (None, {"fields": about}),
            (_("What it may do"), {"fields": [SCOPES]}),
            (_("Quotas"), {"fields": quota, "description": _("On top of its account's. An empty field is no limit.")}),
        ]

    def get_readonly_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> tuple[str, ...]:
        shown = ("begins", "state", "last_used", "created", "requests_link", "usage")
        if user_of(request).is_superuser:
            return shown if obj is None else ("owner", *shown)
        return ("owner", *shown) if _is_own(request, obj) else ("owner", *shown, *SCOPES, "expires_at")

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {"owner": user_of(request).pk, **super().get_changeform_initial_data(request)}

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "owner":
            kwargs["queryset"] = User.objects.filter(is_active=True).order_by("username")
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def save_model(self, request: HttpRequest, obj: ApiKey, form: Any, change: bool) -> None:
        if change:
            super().save_model(request, obj, form, change)
            log.info("key_changed: %s by user %d", obj.pk, user_of(request).pk)
            return
        owner = obj.owner if obj.owner_id is not None else user_of(request)
        quota = {name: getattr(obj, name) for name in QUOTA_FIELDS}
        made, secret = create_key(owner, obj.name, obj.scopes, obj.expires_at, **quota)
        obj.pk, obj.prefix, obj.owner = made.pk, made.prefix, owner
        request.new_secret = secret  # type: ignore[attr-defined]
        log.info("key_made: %s of user %d by user %d", made.pk, owner.pk, user_of(request).pk)

    def response_add(self, request: HttpRequest, obj: ApiKey, post_url_continue: str | None = None) -> HttpResponse:
        """The answer to the form itself shows the secret: kept for another page, it would have to be stored."""
        context = {
            **self.admin_site.each_context(request),
            "title": _("The key is made"),
            "opts": self.opts,
            "key": obj,
            "secret": request.new_secret,  # type: ignore[attr-defined]
        }
        return TemplateResponse(request, "admin/playground/apikey/made.html", context)

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> Any:
        key = context.get("original")
        context["may_revoke"] = key is not None and key.revoked_at is None and self.has_change_permission(request, key)
        context.update(show_save_and_add_another=False, show_save_and_continue=False)
        return super().render_change_form(request, context, *args, **kwargs)

    # Revoking

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(require_POST(self.revoke_view))
        return [path("<int:key_id>/revoke/", view, name="playground_apikey_revoke"), *super().get_urls()]

    def revoke_view(self, request: HttpRequest, key_id: int) -> HttpResponse:
        key = self.get_queryset(request).filter(pk=key_id).first()
        if key is None:
            raise Http404
        if not self.has_change_permission(request, key):
            raise PermissionDenied
        _revoke(request, key)
        messages.success(request, _("The key is revoked. What it is doing now ends within seconds."))
        return HttpResponseRedirect(reverse("admin:playground_apikey_change", args=(key.pk,)))


def _revoke(request: HttpRequest, key: ApiKey) -> None:
    revoke(key)
    log.info("key_revoked: %s by user %d", key.pk, user_of(request).pk)


def _is_staff(request: HttpRequest) -> bool:
    return user_of(request).is_active and user_of(request).is_staff


def _is_own(request: HttpRequest, key: ApiKey | None) -> bool:
    return key is None or key.owner_id == user_of(request).pk


def _sees_all(request: HttpRequest) -> bool:
    return may(request, "view_apikey") or may(request, "change_apikey")
