"""Accounts and groups as Django has them, with this project's permissions named in the reader's language."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, Permission, User
from django.http import HttpRequest
from django.utils import translation

from playground.admin.quotas import QuotaInline
from playground.models import AccountQuota, ApiKey, Conversation, InferenceRequest, PromptRead

OWN = (Conversation, InferenceRequest, PromptRead, ApiKey, AccountQuota)
OWN_MODELS = frozenset(model._meta.model_name for model in OWN)


class PermissionChoice(forms.ModelMultipleChoiceField):
    """The database has names in English, since it keeps one of each; here they are looked up in the catalogue."""

    def label_from_instance(self, obj: Any) -> str:
        return permission_label(obj)


def permission_label(permission: Permission) -> str:
    own = permission.content_type.model in OWN_MODELS and not permission.codename.startswith(
        ("add_", "change_", "delete_", "view_")
    )
    return f"{permission.content_type} | {translation.gettext(permission.name) if own else permission.name}"


class Translated(admin.ModelAdmin):
    def formfield_for_manytomany(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.related_model is Permission:
            kwargs["form_class"] = PermissionChoice
        return super().formfield_for_manytomany(db_field, request, **kwargs)


admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class Users(UserAdmin, Translated):
    inlines = (QuotaInline,)

    def get_inlines(self, request: HttpRequest, obj: Any) -> Any:
        return self.inlines if obj is not None else ()

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """With an account goes what was asked from it, though the rows of requests can't be deleted one by one."""
        listed, counts, needed, protected = super().get_deleted_objects(objs, request)
        own = {str(model._meta.verbose_name) for model in OWN}
        return listed, counts, {name for name in needed if str(name) not in own}, protected


@admin.register(Group)
class Groups(GroupAdmin, Translated):
    pass
