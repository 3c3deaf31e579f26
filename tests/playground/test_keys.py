"""API keys and who comes with them; groups that every installation has."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import Group, User
from django.utils import timezone

from playground.access import groups
from playground.access.callers import GENERATE, METRICS, SCHEDULER, Caller, may
from playground.access.keys import caller_of_key, create_key, revoke
from playground.models import ApiKey

pytestmark = pytest.mark.django_db


def test_a_key_opens_what_its_scopes_say(alice: User, staff: User) -> None:
    key, secret = create_key(alice, "script")
    caller = caller_of_key(secret)
    assert caller is not None
    assert (caller.user, caller.key) == (alice, key)
    assert [may(caller, scope) for scope in (GENERATE, SCHEDULER, METRICS)] == [True, False, False]
    _, secret = create_key(staff, "board", ["scheduler", "metrics"])
    board = caller_of_key(secret)
    assert board is not None
    assert [may(board, scope) for scope in (GENERATE, SCHEDULER, METRICS)] == [False, True, True]


def test_a_key_gives_no_more_than_its_account_has(alice: User) -> None:
    _, secret = create_key(alice, "curious", ["generate", "scheduler"])
    alice.groups.clear()
    caller = caller_of_key(secret)
    assert caller is not None
    assert not may(caller, GENERATE)
    assert not may(caller, SCHEDULER)


def test_only_a_hash_is_kept(alice: User) -> None:
    key, secret = create_key(alice, "script")
    assert secret.startswith("bs-")
    assert len(secret) > 40
    fields = [str(value) for value in ApiKey.objects.filter(pk=key.pk).values_list()[0]]
    assert not any(secret in field for field in fields)
    assert secret.startswith(key.prefix)


def test_wrong_keys_are_nobodys(alice: User) -> None:
    key, secret = create_key(alice, "script")
    for wrong in (
        "",
        "bs-",
        "Bearer",
        secret[:-1],
        secret + "x",
        secret.swapcase(),
        key.prefix,
        "bs-" + "ÿ" * 43,
        "\ud800",
    ):
        assert caller_of_key(wrong) is None, wrong


def test_a_key_ends(alice: User) -> None:
    key, secret = create_key(alice, "short", expires_at=timezone.now() + timedelta(hours=1))
    assert caller_of_key(secret)
    ApiKey.objects.filter(pk=key.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert caller_of_key(secret) is None
    other, secret = create_key(alice, "revoked")
    revoke(other)
    assert caller_of_key(secret) is None
    _, secret = create_key(alice, "closed account")
    User.objects.filter(pk=alice.pk).update(is_active=False)
    assert caller_of_key(secret) is None


def test_the_last_use_is_noted_and_not_at_each_call(alice: User, django_assert_num_queries: object) -> None:
    key, secret = create_key(alice, "script")
    assert key.last_used_at is None
    caller_of_key(secret)
    key.refresh_from_db()
    first = key.last_used_at
    assert first is not None
    caller_of_key(secret)
    key.refresh_from_db()
    assert key.last_used_at == first


def test_there_is_no_other_scope(alice: User) -> None:
    with pytest.raises(ValueError, match="there are: generate, scheduler, metrics"):
        create_key(alice, "x", ["everything"])


def test_new_accounts_may_chat_and_no_more(alice: User, staff: User, admin_user: User) -> None:
    assert [may(Caller(alice), scope) for scope in (GENERATE, SCHEDULER)] == [True, False]
    assert [may(Caller(staff), scope) for scope in (GENERATE, SCHEDULER)] == [True, True]
    assert [may(Caller(admin_user), scope) for scope in (GENERATE, SCHEDULER)] == [True, True]
    assert list(alice.groups.values_list("name", flat=True)) == ["users"]
    watcher = User.objects.create_user("watcher")
    watcher.groups.add(Group.objects.get(name="observers"))
    assert may(Caller(User.objects.get(pk=watcher.pk)), SCHEDULER)


def test_what_an_administrator_takes_from_a_group_stays_taken() -> None:
    group = Group.objects.get(name="users")
    group.permissions.clear()
    groups.make_groups()
    assert group.permissions.count() == 0


def test_each_group_has_the_permissions_that_it_should() -> None:
    for name, codenames in groups.PERMISSIONS.items():
        had = set(Group.objects.get(name=name).permissions.values_list("codename", flat=True))
        assert had == set(codenames)
