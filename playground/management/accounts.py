"""The account that a command is for."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.core.management.base import CommandError

from playground.access.first_start import local_admin


def account_named(name: str) -> User:
    """The active account of that name; the local admin where none is given. Raises CommandError."""
    if not name:
        return local_admin()
    found = User.objects.filter(username=name, is_active=True).first()
    if found is None:
        raise CommandError(f"there is no active account named {name!r}")
    return found
