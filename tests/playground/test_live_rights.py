"""Who may not be here any more is sent away within seconds, whatever it was that changed, and at little cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.models import Session
from django.db import InterfaceError, OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from support.sockets import Browser, cookie_of

from playground.access import live_rights
from playground.access.callers import GENERATE, SCHEDULER, Caller
from playground.access.keys import create_key, revoke
from playground.access.live_rights import Standing, standing_of, still_good
from playground.models import ApiKey
from playground.sockets import registry
from playground.sockets.registry import get_open_sockets

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "LOOK_EVERY", 0.05)
    get_open_sockets.cache_clear()


def test_the_promise_is_kept_with_the_real_interval() -> None:
    assert registry.LOOK_EVERY <= 2.5


def session_of(cookie: str) -> str:
    return cookie.partition("=")[2]


def watcher(user: User) -> User:
    user.user_permissions.add(Permission.objects.get(codename="watch_scheduler"))
    return user


# By session: what is changed, and the socket that it closes


def log_out(user: User, cookie: str) -> None:
    Session.objects.filter(session_key=session_of(cookie)).delete()


def expire(user: User, cookie: str) -> None:
    Session.objects.filter(session_key=session_of(cookie)).update(expire_date=timezone.now() - timedelta(1))


def change_password(user: User, cookie: str) -> None:
    user.set_password("another one")
    user.save()


def deactivate(user: User, cookie: str) -> None:
    User.objects.filter(pk=user.pk).update(is_active=False)


def delete(user: User, cookie: str) -> None:
    user.delete()


def leave_groups(user: User, cookie: str) -> None:
    user.groups.clear()


def demote(user: User, cookie: str) -> None:
    User.objects.filter(pk=user.pk).update(is_staff=False, is_superuser=False)


@pytest.mark.parametrize("change", [log_out, expire, change_password, deactivate, delete, leave_groups])
async def test_what_closes_a_chat_socket(
    change: Callable[[User, str], None], alice: User, bob: User, gateway: Any
) -> None:
    cookie = await sync_to_async(cookie_of)(alice)
    browser, other = await Browser("/ws/chat/", cookie).open(), await Browser.of(bob)
    await browser.ask(type="generate", prompt="slow one")
    await browser.hear("delta")
    await sync_to_async(change)(alice, cookie)
    closing = await browser.closing()
    assert (closing["code"], closing["reason"]) == (
        4401,
        "you have signed out, or your rights or your key have changed",
    )
    await asyncio.sleep(0.02)
    assert gateway.followers == 0
    await browser.ask(type="ping")
    assert await browser.receive_nothing(0.1), "nothing is sent after that"
    await other.ask(type="ping")
    assert (await other.hear())["type"] == "pong"
    await browser.disconnect()
    await other.disconnect()


@pytest.mark.parametrize("change", [log_out, change_password, demote])
async def test_what_closes_a_scheduler_socket(change: Callable[[User, str], None], staff: User, gateway: Any) -> None:
    cookie = await sync_to_async(cookie_of)(staff)
    viewer = await Browser("/ws/scheduler/", cookie).open()
    await sync_to_async(change)(staff, cookie)
    assert await viewer.closed_with() == 4401
    await viewer.disconnect()


@pytest.mark.parametrize("rank", ["is_staff", "is_superuser"])
async def test_whoever_loses_a_rank_has_to_come_in_anew(rank: str, alice: User, gateway: Any) -> None:
    """With the right to chat still there: staff may go before others, and superusers have no limits."""
    await User.objects.filter(pk=alice.pk).aupdate(**{rank: True})
    await alice.arefresh_from_db()
    browser = await Browser.of(alice)
    await User.objects.filter(pk=alice.pk).aupdate(**{rank: False})
    assert await browser.closed_with() == 4401
    await browser.disconnect()
    await alice.arefresh_from_db()
    browser = await Browser.of(alice)
    await User.objects.filter(pk=alice.pk).aupdate(**{rank: True})
    await asyncio.sleep(0.2)
    await browser.ask(type="ping")
    assert (await browser.hear())["type"] == "pong", "a promotion sends nobody away"
    await browser.disconnect()


async def test_the_right_to_watch_alone_opens_the_scheduler_and_its_loss_closes_it(alice: User, gateway: Any) -> None:
    await sync_to_async(watcher)(alice)
    viewer = await Browser.of(alice, "/ws/scheduler/")
    await alice.user_permissions.aclear()
    assert await viewer.closed_with() == 4401
    await viewer.disconnect()


async def test_a_changed_password_does_not_revoke_keys(alice: User, gateway: Any) -> None:
    _, secret = await sync_to_async(create_key)(alice, "k")
    program = await Browser.with_key(secret)
    await sync_to_async(change_password)(alice, "")
    await asyncio.sleep(0.2)
    await program.ask(type="ping")
    assert (await program.hear())["type"] == "pong"
    await program.disconnect()


# By key


def no_more_scope(key: ApiKey) -> None:
    ApiKey.objects.filter(pk=key.pk).update(generate=False)


def too_old(key: ApiKey) -> None:
    ApiKey.objects.filter(pk=key.pk).update(expires_at=timezone.now())


def gone(key: ApiKey) -> None:
    key.delete()


def account_closed(key: ApiKey) -> None:
    User.objects.filter(pk=key.owner_id).update(is_active=False)


def account_demoted(key: ApiKey) -> None:
    key.owner.groups.clear()


@pytest.mark.parametrize("change", [revoke, no_more_scope, too_old, gone, account_closed, account_demoted])
async def test_what_closes_a_programs_socket(change: Callable[[ApiKey], None], alice: User, gateway: Any) -> None:
    key, secret = await sync_to_async(create_key)(alice, "k")
    _, other_secret = await sync_to_async(create_key)(alice, "other")
    program, other = await Browser.with_key(secret), await Browser.with_key(other_secret)
    await program.ask(type="generate", prompt="slow one")
    await program.hear("delta")
    await sync_to_async(change)(key)
    assert await program.closed_with() == 4401
    assert await program.receive_nothing(0.1)
    if change not in (account_closed, account_demoted):
        await other.ask(type="ping")
        assert (await other.hear())["type"] == "pong"
    await program.disconnect()
    await other.disconnect()


@pytest.mark.parametrize("error", [OperationalError, InterfaceError, ZeroDivisionError])
async def test_while_rights_cannot_be_read_nobody_is_sent_away_and_later_they_are(
    error: type[Exception], alice: User, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookie = await sync_to_async(cookie_of)(alice)
    browser = await Browser("/ws/chat/", cookie).open()
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def away(standings: Any) -> Any:
        loop.call_soon_threadsafe(asked.set)
        raise error("database is locked")

    monkeypatch.setattr(registry, "still_good", away)
    await asyncio.wait_for(asked.wait(), 5)
    await browser.ask(type="ping")
    assert (await browser.hear())["type"] == "pong"
    monkeypatch.setattr(registry, "still_good", still_good)
    await sync_to_async(log_out)(alice, cookie)
    assert await browser.closed_with() == 4401
    await browser.disconnect()


# What it costs


def crowd(count: int) -> set[Standing]:
    """Sockets of so many accounts: half with sessions, half with keys."""
    users = User.objects.bulk_create([User(username=f"u{i}", password="p") for i in range(count)])
    group = User.objects.get(username="alice").groups.get()
    User.groups.through.objects.bulk_create([User.groups.through(user=user, group=group) for user in users])
    until = timezone.now() + timedelta(1)
    Session.objects.bulk_create([Session(session_key=f"s{i}", expire_date=until) for i in range(count)])
    keys = ApiKey.objects.bulk_create(
        [ApiKey(owner=user, name="k", key_hash=str(user.pk)) for user in users[: count // 2]]
    )
    by_key = [standing_of(Caller(user, key), GENERATE) for user, key in zip(users, keys, strict=False)]
    return {*by_key, *(standing_of(Caller(user), GENERATE, f"s{i}") for i, user in enumerate(users))}


@pytest.mark.parametrize("count", [2, 600])
def test_a_look_is_a_handful_of_queries_for_any_number_of_sockets(count: int, alice: User) -> None:
    standings = crowd(count)
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert still_good(standings) == standings
    assert len(queries) == 5


def test_values_are_asked_for_in_parts_that_a_database_takes(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_rights, "AT_ONCE", 7)
    standings = crowd(30)
    assert still_good(standings) == standings
    assert still_good(set()) == set()


def test_staff_watch_and_do_not_thereby_chat(alice: User, staff: User, root: User) -> None:
    staff.groups.clear()
    by_right = {
        right: still_good({Standing(right, user.pk, password=user.password) for user in (alice, staff, root)})
        for right in (GENERATE, SCHEDULER)
    }
    assert {one.user_id for one in by_right[GENERATE]} == {alice.pk, root.pk}
    assert {one.user_id for one in by_right[SCHEDULER]} == {staff.pk, root.pk}
