"""`manage.py createkey`: the key alone on the last line, or a sentence that says what is wrong."""

from __future__ import annotations

import io
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.utils import timezone

from playground.access.keys import caller_of_key
from playground.models import ApiKey

pytestmark = pytest.mark.django_db


def printed(*options: str) -> list[str]:
    out = io.StringIO()
    call_command("createkey", *options, stdout=out)
    return out.getvalue().splitlines()


def test_the_key_is_the_last_line_and_works() -> None:
    lines = printed("--name", "script")
    caller = caller_of_key(lines[-1])
    assert caller is not None
    assert caller.key is not None
    assert (caller.user.username, caller.user.is_superuser, caller.key.name) == ("admin", True, "script")
    assert caller.key.scopes == {"generate"}
    assert caller.key.expires_at is None
    assert lines[:-1] == ["The key 'script' of admin, for generate, is valid until it is revoked:"]


def test_the_local_admin_is_made_once() -> None:
    printed("--name", "one")
    printed("--name", "two")
    assert User.objects.get().api_keys.count() == 2


def test_of_an_account_with_scopes_and_days(alice: User) -> None:
    lines = printed("--name", "board", "--user", "alice", "--scope", "metrics", "--scope", "generate", "--days", "1.5")
    caller = caller_of_key(lines[-1])
    assert caller is not None
    assert caller.key is not None
    assert caller.user == alice
    assert caller.key.scopes == {"metrics", "generate"}
    assert caller.key.expires_at is not None
    left = caller.key.expires_at - timezone.now()
    assert timedelta(hours=35) < left <= timedelta(hours=36)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--name", "x", "--user", "nobody"), "there is no active account named 'nobody'"),
        (("--name", "x", "--scope", "all"), "there is no scope 'all'; there are: generate, scheduler, metrics"),
        (("--name", " "), "the name has 0 characters; it must have 1 to 100"),
        (("--name", "x" * 101), "the name has 101 characters; it must have 1 to 100"),
        (("--name", "x", "--days", "0"), "a key is valid for more than 0 and at most 36500 days, not for 0"),
        (("--name", "x", "--days", "nan"), "a key is valid for more than 0 and at most 36500 days, not for nan"),
        ((), "the following arguments are required: --name"),
    ],
)
def test_a_sentence_says_what_is_wrong(options: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(CommandError) as error:
        printed(*options)
    assert sentence in str(error.value)
    assert not ApiKey.objects.exists()


def test_a_closed_account_gets_none(alice: User) -> None:
    User.objects.filter(pk=alice.pk).update(is_active=False)
    with pytest.raises(CommandError, match="no active account"):
        printed("--name", "x", "--user", "alice")


def test_without_tables_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_such_table(name: str) -> User:
        raise OperationalError("no such table: auth_user")

    monkeypatch.setattr("playground.management.commands.createkey.account_named", no_such_table)
    with pytest.raises(CommandError, match=r"run `manage\.py migrate`"):
        printed("--name", "x")
