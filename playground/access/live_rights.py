"""Whether those who are here may still be here: accounts, sessions, keys and rights, of any number at once (R19).

Knows: the tables. Must not know: sockets. A check is the same few queries for one socket and for all of a process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db.models import Q, QuerySet
from django.utils import timezone

from playground.access.callers import GENERATE, METRICS, SCHEDULER, Caller
from playground.models import ApiKey

AT_ONCE = 10_000  # values in one query
_PERMISSION = {GENERATE: "chat", SCHEDULER: "watch_scheduler", METRICS: "watch_scheduler"}
_STAFF_TOO = {SCHEDULER, METRICS}


@dataclass(frozen=True, slots=True)
class Standing:
    """What somebody was let in by. It holds for as long as all of it does."""

    right: str  # a scope of keys
    user_id: int
    ranks: frozenset[str] = frozenset()  # whoever loses one has to come in anew
    session_key: str | None = None
    password: str = field(default="", repr=False)  # as hashed then; not looked at where a key came
    key_id: int | None = None


def standing_of(caller: Caller, right: str, session_key: str | None = None) -> Standing:
    user = caller.user
    ranks = _ranks(user.is_staff, user.is_superuser)
    if caller.key is not None:
        return Standing(right, user.pk, ranks, key_id=caller.key.pk)
    return Standing(right, user.pk, ranks, session_key, user.password)


def still_good(standings: Collection[Standing]) -> set[Standing]:
    """Those that hold now. Reads the database: two queries, and one or two for each kind of session, key and right
    that there is among them."""
    accounts = _accounts({standing.user_id for standing in standings})
    sessions = _sessions({standing.session_key for standing in standings if standing.session_key})
    keys = _keys({standing.key_id for standing in standings if standing.key_id is not None})
    rights = {right: _holders(right, accounts) for right in {standing.right for standing in standings}}

    def holds(standing: Standing) -> bool:
        account = accounts.get(standing.user_id)
        if account is None or standing.user_id not in rights[standing.right]:
            return False
        if not standing.ranks <= _ranks(account.is_staff, account.is_superuser):
            return False
        if standing.key_id is not None:
            return standing.right in keys.get(standing.key_id, ())
        in_session = standing.session_key is None or standing.session_key in sessions
        return in_session and account.password == standing.password

    return {standing for standing in standings if holds(standing)}


def _ranks(is_staff: bool, is_superuser: bool) -> frozenset[str]:
    return frozenset(name for name, has in (("staff", is_staff), ("superuser", is_superuser)) if has)


@dataclass(frozen=True, slots=True)
class _Account:
    password: str = field(repr=False)
    is_staff: bool
    is_superuser: bool


def _accounts(user_ids: Collection[int]) -> dict[int, _Account]:
    """Those that are open."""
    rows = _each(user_ids, lambda some: User.objects.filter(pk__in=some, is_active=True))
    return {
        pk: _Account(*rest)
        for some in rows
        for pk, *rest in some.values_list("pk", "password", "is_staff", "is_superuser")
    }


def _sessions(session_keys: Collection[str]) -> set[str]:
    now = timezone.now()
    rows = _each(session_keys, lambda some: Session.objects.filter(session_key__in=some, expire_date__gt=now))
    return {key for some in rows for key in some.values_list("session_key", flat=True)}


def _keys(key_ids: Collection[int]) -> dict[int, frozenset[str]]:
    """Scopes by key, of those that are valid."""
    in_time = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
    rows = _each(key_ids, lambda some: ApiKey.objects.filter(in_time, pk__in=some, revoked_at=None))
    return {key.pk: key.scopes for some in rows for key in some}


def _holders(right: str, accounts: dict[int, _Account]) -> set[int]:
    """Accounts that have the right, by themselves, through a group, or by what they are."""
    by_nature = {
        pk for pk, account in accounts.items() if account.is_superuser or (account.is_staff and right in _STAFF_TOO)
    }
    others = set(accounts) - by_nature
    codename = _PERMISSION[right]
    own = {"permission__codename": codename, "permission__content_type__app_label": "playground"}
    of_group = {f"group__permissions__{name.removeprefix('permission__')}": value for name, value in own.items()}
    rows = [
        *_each(others, lambda some: User.user_permissions.through.objects.filter(user_id__in=some, **own)),
        *_each(others, lambda some: User.groups.through.objects.filter(user_id__in=some, **of_group)),
    ]
    return by_nature | {pk for some in rows for pk in some.values_list("user_id", flat=True)}


def _each(values: Collection[Any], query: Callable[[list[Any]], QuerySet[Any]]) -> Iterator[QuerySet[Any]]:
    """The query over all values, in parts that a database takes."""
    all_of_them = list(values)
    for start in range(0, len(all_of_them), AT_ONCE):
        yield query(all_of_them[start : start + AT_ONCE])
