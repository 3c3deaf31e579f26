"""One-time login links: a token in a URL that signs its account in once, within a day.

The database holds a hash only, so that a copy of it opens no door. Must not know: pages, the command line.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta

from django.contrib.auth.models import User
from django.urls import reverse
from django.utils import timezone

from playground.models import LoginLink

LIFETIME = timedelta(hours=24)


def create_link(user: User, base_url: str) -> str:
    """A new link for `user`, as a whole URL. Links that are used up or too old are cleared away."""
    now = timezone.now()
    LoginLink.objects.filter(expires_at__lt=now - LIFETIME).delete()
    token = secrets.token_urlsafe(32)
    LoginLink.objects.create(user=user, token_hash=_hash(token), expires_at=now + LIFETIME)
    return base_url + reverse("login-link", args=[token])


def redeem(token: str) -> User | None:
    """The account of an unused link, which is used up by this call; None if there is none.

    One conditional UPDATE decides, so that of two browsers at the same moment one gets in.
    """
    now = timezone.now()
    links = LoginLink.objects.filter(token_hash=_hash(token))
    if not links.filter(used_at=None, expires_at__gt=now, user__is_active=True).update(used_at=now):
        return None
    return links.select_related("user").get().user


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
