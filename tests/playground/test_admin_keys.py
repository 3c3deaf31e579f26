"""API keys and quotas in the admin: made there and shown once, revoked, and nobody's way into another account."""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib.auth.models import Group, Permission, User
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone
from support.admin import REQUESTS, add, address

from playground.access.keys import caller_of_key, create_key, revoke
from playground.access.limits import Limiter
from playground.logs import configure_logs, logging_settings
from playground.models import AccountQuota, ApiKey, InferenceRequest

KEYS = "/admin/playground/apikey/"
QUOTAS = "/admin/playground/accountquota/"
FORM = {"name": "script", "generate": "on"}
QUOTA = {"requests_per_minute": 60, "tokens_per_day": 5000}


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def in_group(name: str, group: str) -> User:
    user = User.objects.create_user(name, is_staff=True)
    user.groups.set([Group.objects.get(name=group)])
    return user


@pytest.fixture
def operator(db: None) -> User:
    return in_group("operator", "operators")


def secret_in(html: str) -> str:
    [secret] = re.findall(r'value="(bs-[\w-]+)"', html)
    return secret


def test_a_key_is_made_and_shown_once(root: User, caplog: pytest.LogCaptureFixture) -> None:
    client = client_of(root)
    caplog.set_level(logging.DEBUG)
    answer = client.post(f"{KEYS}add/", {**FORM, **QUOTA, "owner": root.pk, "metrics": "on"})
    assert answer.status_code == 200
    secret = secret_in(answer.content.decode())
    assert "no-store" in answer.headers["Cache-Control"]
    caller = caller_of_key(secret)
    assert caller is not None
    assert caller.key is not None
    assert (caller.user, caller.key.name, caller.key.scopes) == (root, "script", {"generate", "metrics"})
    key = ApiKey.objects.get()
    assert (key.requests_per_minute, key.requests_per_day, key.tokens_per_day) == (60, None, 5000)
    for page in (KEYS, f"{KEYS}{key.pk}/change/", f"{KEYS}{key.pk}/history/"):
        html = client.get(page).content.decode()
        assert secret not in html
        assert key.key_hash not in html
    assert secret not in repr([session.get_decoded() for session in Session.objects.all()])
    assert secret not in caplog.text


def test_no_level_of_logging_shows_what_pages_hold() -> None:
    """Django writes a page's whole context into a debug line when a template names what is not there."""
    loggers = logging_settings("DEBUG", "text")["loggers"]
    assert {loggers[name]["level"] for name in ("django.template", "django.db.backends")} == {"INFO"}


@pytest.mark.parametrize("sent", [{}, {"headers": {"Host": "evil.example"}}])
def test_what_strangers_send_wrong_is_no_line_in_the_log(
    sent: dict[str, Any], db: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor its path, which may hold a login link that still works."""
    configure_logs(logging_settings("INFO", "text"))
    try:
        answer = Client(enforce_csrf_checks=True).post("/login/a-link-that-works/", **sent)
        assert answer.status_code in (400, 403)
        assert capsys.readouterr().err == ""
    finally:
        configure_logs(logging_settings(settings.BATCHSCOPE.log_level, settings.BATCHSCOPE.log_format))


def test_the_page_of_a_new_key_works_without_a_mouse(root: User) -> None:
    html = client_of(root).post(f"{KEYS}add/", {**FORM, "owner": root.pk}).content.decode()
    assert re.search(r'<label for="secret">.*<input id="secret" type="text" readonly autofocus', html, re.DOTALL)
    assert not re.search(r" style=|<style|<script>| onclick=", html)  # the policy forbids them


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": ""}, "This field is required"),
        ({"generate": ""}, "Choose at least one thing that the key may do"),
        ({"expires_at_0": "2020-01-01", "expires_at_1": "00:00"}, "This time is over"),
        ({"requests_per_minute": "-1"}, "greater than or equal to 0"),
    ],
)
def test_a_form_that_is_wrong_makes_no_key(fields: dict[str, str], words: str, root: User) -> None:
    sent = {name: value for name, value in {**FORM, "owner": root.pk, **fields}.items() if value != ""}
    assert words in client_of(root).post(f"{KEYS}add/", sent).content.decode()
    assert not ApiKey.objects.exists()


def test_staff_make_keys_for_themselves_only(staff: User, alice: User) -> None:
    client = client_of(staff)
    html = client.get(f"{KEYS}add/").content.decode()
    assert "alice" not in html
    client.post(f"{KEYS}add/", {**FORM, "owner": alice.pk})
    assert ApiKey.objects.get().owner == staff


def test_an_operator_makes_no_key_that_is_somebody_elses(operator: User, alice: User, root: User) -> None:
    client = client_of(operator)
    for owner in (alice, root):
        client.post(f"{KEYS}add/", {**FORM, "owner": owner.pk})
    assert set(ApiKey.objects.values_list("owner__username", flat=True)) == {"operator"}
    key, secret = create_key(alice, "hers")
    client.post(f"{KEYS}{key.pk}/change/", {**FORM, "owner": operator.pk})
    key.refresh_from_db()
    assert (key.owner, key.name) == (alice, "script")
    caller = caller_of_key(secret)
    assert caller is not None
    assert caller.user == alice


def test_an_operator_has_nobody_elses_key_open_more_or_for_longer(operator: User, root: User) -> None:
    """Whoever runs the scraper knows its key, and would come to what its account may do."""
    key, secret = create_key(root, "scraper", ["metrics"], timezone.now() + timedelta(days=1))
    expires_at, client = key.expires_at, client_of(operator)
    sent = {"name": "graphs", "generate": "on", "expires_at_0": "2999-01-01", "expires_at_1": "00:00", **QUOTA}
    assert client.post(f"{KEYS}{key.pk}/change/", sent).status_code == 302
    key.refresh_from_db()
    assert (key.scopes, key.expires_at) == ({"metrics"}, expires_at)
    assert (key.name, key.requests_per_minute) == ("graphs", 60)
    own, _ = create_key(operator, "own", ["metrics"])
    client.post(f"{KEYS}{own.pk}/change/", sent)
    own.refresh_from_db()
    assert own.scopes == {"generate"}
    assert client_of(root).post(f"{KEYS}{key.pk}/change/", sent).status_code == 302
    caller = caller_of_key(secret)
    assert caller is not None
    assert caller.key is not None
    assert caller.key.scopes == {"generate"}


def test_superusers_make_keys_for_others(root: User, alice: User) -> None:
    answer = client_of(root).post(f"{KEYS}add/", {**FORM, "owner": alice.pk})
    caller = caller_of_key(secret_in(answer.content.decode()))
    assert caller is not None
    assert caller.user == alice


def test_staff_see_their_own_and_operators_all(staff: User, operator: User, alice: User) -> None:
    own, _ = create_key(staff, "mine")
    hers, _ = create_key(alice, "hers")
    listing = client_of(staff).get(KEYS).content.decode()
    assert own.prefix in listing
    assert hers.prefix not in listing
    assert "alice" not in listing
    assert client_of(staff).get(f"{KEYS}{own.pk}/change/").status_code == 200
    assert client_of(staff).get(f"{KEYS}{hers.pk}/change/")["Location"] == "/admin/"
    assert client_of(staff).post(f"{KEYS}{hers.pk}/revoke/").status_code == 404
    listing = client_of(operator).get(KEYS).content.decode()
    assert own.prefix in listing
    assert hers.prefix in listing
    assert client_of(alice).get(KEYS).status_code == 302
    assert client_of(alice).post(f"{KEYS}{hers.pk}/revoke/").status_code == 302
    hers.refresh_from_db()
    assert hers.revoked_at is None


def test_who_may_see_all_may_not_change_all(staff: User, alice: User) -> None:
    staff.user_permissions.add(Permission.objects.get(codename="view_apikey"))
    key, _ = create_key(alice, "hers")
    client = client_of(staff)
    assert key.prefix in client.get(KEYS).content.decode()
    assert b"Revoke this key" not in client.get(f"{KEYS}{key.pk}/change/").content
    assert client.post(f"{KEYS}{key.pk}/change/", FORM).status_code == 403
    assert client.post(f"{KEYS}{key.pk}/revoke/").status_code == 403
    client.post(KEYS, {"action": "revoke_selected", "_selected_action": [key.pk]})
    key.refresh_from_db()
    assert (key.name, key.revoked_at) == ("hers", None)


def test_a_key_is_revoked_on_its_page(operator: User, alice: User) -> None:
    key, secret = create_key(alice, "hers")
    client = client_of(operator)
    page = f"{KEYS}{key.pk}/change/"
    assert b"Revoke this key" in client.get(page).content
    assert client.get(f"{KEYS}{key.pk}/revoke/").status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(operator)
    assert strict.post(f"{KEYS}{key.pk}/revoke/").status_code == 403
    assert caller_of_key(secret) is not None
    assert client.post(f"{KEYS}{key.pk}/revoke/")["Location"] == page
    assert caller_of_key(secret) is None
    html = client.get(page).content.decode()
    assert "Revoke this key" not in html
    assert "revoked" in html
    assert client.post(f"{KEYS}{key.pk}/delete/", {"post": "yes"}).status_code == 403  # requests still name it


def test_several_keys_are_revoked_in_the_list(operator: User, alice: User) -> None:
    keys = [create_key(alice, f"key {n}")[0] for n in range(3)]
    client = client_of(operator)
    chosen = [key.pk for key in keys[:2]]
    html = client.post(KEYS, {"action": "revoke_selected", "_selected_action": chosen}, follow=True).content.decode()
    assert "2 keys are revoked." in html
    assert [key.revoked_at is not None for key in ApiKey.objects.order_by("pk")] == [True, True, False]


def test_the_list_tells_states_and_last_uses(root: User, alice: User, bob: User) -> None:
    now = timezone.now()
    valid, secret = create_key(alice, "valid one", requests_per_minute=7)
    expired, _ = create_key(alice, "expired one", expires_at=now - timedelta(days=1))
    revoked, _ = create_key(bob, "revoked one", ["metrics"])
    revoke(revoked)
    caller_of_key(secret)
    client = client_of(root)
    html = client.get(KEYS).content.decode()
    assert html.count(">never<") == html.count(">at no time<") == 2
    assert timezone.now().strftime("%Y-%m-%d") in html
    assert "7 requests a minute" in html
    for query, found in (
        ({"state": "valid"}, valid),
        ({"state": "expired"}, expired),
        ({"state": "revoked"}, revoked),
        ({"q": "expired one"}, expired),
        ({"q": revoked.prefix}, revoked),
        ({"q": "bob"}, revoked),
        ({"metrics__exact": "1"}, revoked),
        ({"owner": bob.pk}, revoked),
    ):
        listing = client.get(KEYS, query).content.decode()
        shown = {key.name for key in (valid, expired, revoked) if f"{key.prefix}…" in listing}
        assert shown == {found.name}, query


def test_names_stay_text(root: User, alice: User) -> None:
    key, _ = create_key(alice, "<img src=x onerror=alert(1)>")
    row = add(alice, {"total": 5.0}, key=key)
    client = client_of(root)
    for page in (KEYS, f"{KEYS}{key.pk}/change/", REQUESTS, address(row)):
        html = client.get(page).content.decode()
        assert "<img src=x" not in html
        assert "&lt;img src=x" in html


def test_requests_show_their_key_and_are_found_by_it(root: User, alice: User) -> None:
    key, secret = create_key(alice, "script")
    caller_of_key(secret)
    with_key, without = add(alice, {"total": 5.0}, key=key), add(alice, {"total": 5.0})
    client = client_of(root)
    everything = client.get(REQUESTS).content.decode()
    assert f'<a href="{REQUESTS}?key={key.pk}">script</a>' in everything
    assert str(key) in everything  # in the filter
    found = client.get(REQUESTS, {"key": key.pk}).content.decode()
    assert str(with_key.pk) in found
    assert str(without.pk) not in found
    assert "script" in client.get(address(with_key)).content.decode()
    assert client.get(REQUESTS, {"key": "x"}).status_code == 200


def test_a_revoked_key_keeps_its_requests(alice: User, root: User) -> None:
    key, _ = create_key(alice, "script")
    row = add(alice, key=key)
    assert client_of(root).post(f"{KEYS}{key.pk}/delete/", {"post": "yes"}).status_code == 302
    row.refresh_from_db()
    assert row.key is None


# Quotas of accounts


def test_an_operator_sets_quotas_of_accounts(operator: User, alice: User) -> None:
    client = client_of(operator)
    assert client.post(f"{QUOTAS}add/", {"user": alice.pk, **QUOTA}).status_code == 302
    quota = AccountQuota.objects.get()
    assert (quota.user, quota.requests_per_minute, quota.tokens_per_minute) == (alice, 60, None)
    assert "alice" in client.get(QUOTAS).content.decode()
    client.post(f"{QUOTAS}{quota.pk}/change/", {"requests_per_minute": 5, "user": operator.pk})
    quota.refresh_from_db()
    assert (quota.user, quota.requests_per_minute, quota.tokens_per_day) == (alice, 5, None)


def test_nobody_but_a_superuser_sets_the_own_quota(operator: User, root: User) -> None:
    client = client_of(operator)
    assert "Select a valid choice" in client.post(f"{QUOTAS}add/", {"user": operator.pk}).content.decode()
    own = AccountQuota.objects.create(user=operator, requests_per_minute=1)
    assert client.post(f"{QUOTAS}{own.pk}/change/", QUOTA).status_code == 403
    own.refresh_from_db()
    assert own.requests_per_minute == 1
    assert client.get(f"{QUOTAS}{own.pk}/change/").status_code == 200
    assert client_of(root).post(f"{QUOTAS}add/", {"user": root.pk, **QUOTA}).status_code == 302


def test_quotas_are_not_for_every_staff_account(staff: User, alice: User) -> None:
    client = client_of(staff)
    assert client.get(QUOTAS).status_code == client.post(f"{QUOTAS}add/", {"user": alice.pk}).status_code == 403
    assert not AccountQuota.objects.exists()


def test_the_page_of_an_account_has_its_quota(root: User, alice: User) -> None:
    client = client_of(root)
    page = f"/admin/auth/user/{alice.pk}/change/"
    html = client.get(page).content.decode()
    assert "quota-0-requests_per_minute" in html
    form: dict[str, Any] = {
        **{"username": "alice", "date_joined_0": "2026-01-01", "date_joined_1": "00:00:00", "is_active": "on"},
        **{"quota-TOTAL_FORMS": 1, "quota-INITIAL_FORMS": 0, "quota-0-user": alice.pk, "quota-0-tokens_per_day": 9},
    }
    assert client.post(page, form).status_code == 302
    assert AccountQuota.objects.get().tokens_per_day == 9


@pytest.mark.django_db(transaction=True)
def test_usage_is_shown_where_there_is_a_limiter(root: User, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    key, _ = create_key(alice, "script", tokens_per_day=100)
    client = client_of(root)
    assert client.get(f"{KEYS}{key.pk}/change/").status_code == 200

    gateway = SimpleNamespace(limiter=Limiter())
    async_to_sync(gateway.limiter.used)(alice.pk, key.pk, 12)
    monkeypatch.setattr("playground.admin.quotas.get_gateway", lambda: gateway)
    assert "12 of 100 tokens a day" in client.get(f"{KEYS}{key.pk}/change/").content.decode()


def test_with_an_account_goes_all_that_is_its_own(root: User, alice: User) -> None:
    add(alice, {"total": 1.0})
    create_key(alice, "hers")
    AccountQuota.objects.create(user=alice)
    answer = client_of(root).post(f"/admin/auth/user/{alice.pk}/delete/", {"post": "yes"})
    assert answer.status_code == 302
    assert not User.objects.filter(username="alice").exists()
    assert not InferenceRequest.objects.exists()
    assert not ApiKey.objects.exists()
