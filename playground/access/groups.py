"""Groups that every installation has, so that rights are given by choosing one of three words.

Knows: which permissions each has at first. What an administrator changes in a group stays changed: permissions are
given when a group is made, and never again.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Group, Permission, User

USERS, OBSERVERS, OPERATORS = "users", "observers", "operators"
PERMISSIONS = {
    USERS: ("chat",),
    OBSERVERS: ("chat", "watch_scheduler"),
    OPERATORS: (
        *("chat", "watch_scheduler", "cancel_any", "replay"),
        *("view_inferencerequest", "view_conversation", "view_promptread"),
        *("view_apikey", "add_apikey", "change_apikey", "view_accountquota", "add_accountquota", "change_accountquota"),
    ),
}


def make_groups() -> None:
    """After each migration, when permissions are there. Accounts that were before the groups become users."""
    for name in PERMISSIONS:
        _group(name)


def welcome(sender: Any, instance: User, created: bool, raw: bool = False, **kwargs: Any) -> None:
    """A new account may chat, until somebody takes it out of its group."""
    if created and not raw and not instance.is_superuser:
        instance.groups.add(_group(USERS))


def _group(name: str) -> Group:
    group, made = Group.objects.get_or_create(name=name)
    if made:
        group.permissions.set(
            Permission.objects.filter(content_type__app_label="playground", codename__in=PERMISSIONS[name])
        )
        if name == USERS:
            for user in User.objects.filter(is_superuser=False):
                user.groups.add(group)
    return group
