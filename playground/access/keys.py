"""API keys of programs: made, looked up, revoked.

Knows: keys and their hashes. Must not know: HTTP, sockets, pages. The database holds a hash only, so that a copy of it
opens no door; 256 random bits need no slow hash.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection
from datetime import datetime, timedelta

from django.contrib.auth.models import User
from django.utils import timezone

from playground.access.callers import GENERATE, Caller
from playground.models import SCOPES, ApiKey

BEGIN = "bs-"
PREFIX_LENGTH = 11
LONGEST = 128  # characters of what is looked at
USE_NOTED_EVERY = timedelta(minutes=1)


def create_key(
    owner: User,
    name: str,
    scopes: Collection[str] = (GENERATE,),
    expires_at: datetime | None = None,
    **quota: int | None,
) -> tuple[ApiKey, str]:
    """A new key, and the secret, which nobody can tell again. quota: fields of `Quota`. Raises ValueError for a scope
    that there is not."""
    if strangers := sorted(set(scopes) - set(SCOPES)):
        raise ValueError(f"there is no scope {strangers[0]!r}; there are: {', '.join(SCOPES)}")
    secret = BEGIN + secrets.token_urlsafe(32)
    key = ApiKey.objects.create(
        owner=owner,
        name=name,
        prefix=secret[:PREFIX_LENGTH],
        key_hash=_hash(secret),
        expires_at=expires_at,
        **{scope: scope in scopes for scope in SCOPES},
        **quota,
    )
    return key, secret


def caller_of_key(secret: str) -> Caller | None:
    """Who comes with that key; None where it is unknown, revoked or too old, or its account is closed."""
    if not secret.startswith(BEGIN) or len(secret) > LONGEST:
        return None
    found, hashed = None, _hash(secret)
    for key in ApiKey.objects.filter(prefix=secret[:PREFIX_LENGTH]).select_related("owner"):
        if hmac.compare_digest(key.key_hash, hashed):
            found = key
    if found is None or not is_valid(found):
        return None
    _note_use(found)
    return Caller(found.owner, found)


def is_valid(key: ApiKey) -> bool:
    """Whether it opens anything now."""
    expired = key.expires_at is not None and key.expires_at <= timezone.now()
    return key.revoked_at is None and not expired and key.owner.is_active


def revoke(key: ApiKey) -> None:
    """For ever. What it is doing now ends within seconds."""
    if key.revoked_at is None:
        key.revoked_at = timezone.now()
        key.save(update_fields=["revoked_at"])


def _note_use(key: ApiKey) -> None:
    """At most once a minute: a row is not written for each call."""
    now = timezone.now()
    if key.last_used_at is None or now - key.last_used_at > USE_NOTED_EVERY:
        ApiKey.objects.filter(pk=key.pk).update(last_used_at=now)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
