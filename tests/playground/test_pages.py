"""Who may see which address, what every answer carries, and the login link."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.test import Client
from django.utils import timezone

from playground.access.login_links import create_link, redeem
from playground.models import LoginLink

CONVERSATION = "/api/conversations/00000000-0000-4000-8000-000000000000/"
SIGN_IN = 302
# address: status for a stranger, a user, staff, a superuser
RIGHTS = {
    "/": (SIGN_IN, 200, 200, 200),
    "/scheduler/": (SIGN_IN, 403, 200, 200),
    "/scheduler/iterations/": (401, 403, 200, 200),
    "/scheduler/blocks/": (401, 403, 404, 404),
    "/scheduler/export/": (401, 403, 404, 404),
    "/scheduler/control/": (401, 403, 405, 405),
    "/scheduler/demo/": (401, 403, 405, 405),
    "/api/conversations/": (401, 200, 200, 200),
    CONVERSATION: (401, 404, 404, 404),
    "/admin/": (SIGN_IN, SIGN_IN, 200, 200),
    "/admin/login/": (SIGN_IN, 403, SIGN_IN, SIGN_IN),
    "/admin/r/1/1/": (SIGN_IN, SIGN_IN, 404, 404),
    "/admin/playground/apikey/": (SIGN_IN, SIGN_IN, 200, 200),
    "/admin/playground/accountquota/": (SIGN_IN, SIGN_IN, 403, 200),
    "/admin/playground/inferencerequest/": (SIGN_IN, SIGN_IN, 403, 200),
    "/admin/playground/conversation/": (SIGN_IN, SIGN_IN, 403, 200),
    "/docs/": (SIGN_IN, SIGN_IN, SIGN_IN, SIGN_IN),
    "/docs/api/": (SIGN_IN, 200, 200, 200),
    "/docs/websocket/": (SIGN_IN, 200, 200, 200),
    "/asyncapi.json": (SIGN_IN, 200, 200, 200),
    "/v1/openapi.json": (401, 200, 200, 200),
    "/v1/models": (401, 401, 401, 401),  # programs only
    "/v1/chat/completions": (405, 405, 405, 405),
    "/login/": (200, SIGN_IN, SIGN_IN, SIGN_IN),
    "/logout/": (SIGN_IN, 405, 405, 405),
    "/login/no-such-token/": (410, 410, 410, 410),
    "/health": (503, 503, 503, 503),
    "/health/live": (200, 200, 200, 200),
    "/health/ready": (200, 200, 200, 200),
    "/no/such/page": (404, 404, 404, 404),
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


@pytest.mark.parametrize("path", RIGHTS)
def test_rights(path: str, gateway: Any, alice: User, staff: User, root: User) -> None:
    statuses = []
    for user in (None, alice, staff, root):
        client = Client()
        if user is not None:
            client.force_login(user)
        statuses.append(client.get(path).status_code)
    assert tuple(statuses) == RIGHTS[path]


def test_every_address_is_in_the_table_of_rights() -> None:
    from playground.urls import urlpatterns

    def covered(route: str) -> bool:
        return any(path.lstrip("/").startswith(route.partition("<")[0]) for path in RIGHTS)

    elsewhere = ["language/", "metrics"]  # the latter in test_metrics.py
    assert [str(p.pattern) for p in urlpatterns if not covered(str(p.pattern))] == elsewhere


@pytest.mark.parametrize("path", ["/", "/login/", "/api/conversations/", "/no/such/page", "/health/live"])
def test_headers(path: str, client: Client, root: User) -> None:
    client.force_login(root)
    headers = client.get(path).headers
    assert {item.strip() for item in headers["Content-Security-Policy"].split(";")} == set(POLICY.split("; "))
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "same-origin"
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert "no-store" in headers["Cache-Control"]


@pytest.mark.parametrize("path", ["/", "/scheduler/", "/login/", "/admin/", "/no/such/page"])
def test_pages_have_nothing_that_the_policy_forbids(path: str, client: Client, root: User) -> None:
    if path != "/login/":
        client.force_login(root)
    html = client.get(path).content.decode().lower()
    assert "<script>" not in html
    assert " style=" not in html
    assert "<style" not in html
    assert " onclick=" not in html
    assert "http://" not in html.replace("http://www.w3.org/", "")
    assert "https://" not in html


def test_a_login_link_works_once(client: Client, root: User) -> None:
    path = create_link(root, "")
    assert client.head(path).status_code == 410  # a preview uses nothing up
    first = client.get(path)
    assert (first.status_code, first["Location"]) == (302, "/")
    assert client.get("/").status_code == 200
    other = Client()
    assert other.get(path).status_code == 410
    assert other.get("/").status_code == SIGN_IN


def test_a_login_link_expires(root: User) -> None:
    token = create_link(root, "").split("/")[-2]
    LoginLink.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert redeem(token) is None


def test_a_login_link_dies_with_its_account(root: User) -> None:
    token = create_link(root, "").split("/")[-2]
    root.is_active = False
    root.save()
    assert redeem(token) is None


def test_the_token_is_nowhere_in_the_database(root: User) -> None:
    token = create_link(root, "").split("/")[-2]
    assert token not in repr(LoginLink.objects.values())


def test_password_login_and_logout(client: Client, alice: User) -> None:
    wrong = client.post("/login/", {"username": "alice", "password": "no"})
    assert wrong.status_code == 200
    right = client.post("/login/", {"username": "alice", "password": "password of alice"})
    assert right["Location"] == "/"
    assert client.get("/").status_code == 200
    client.post("/logout/")
    assert client.get("/").status_code == SIGN_IN


def test_forms_need_the_csrf_token(alice: User) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(alice)
    assert strict.post("/logout/").status_code == 403
    answer = strict.post("/api/conversations/", "{}", content_type="application/json")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


def test_language_by_the_browser_and_by_the_switch(client: Client, root: User) -> None:
    client.force_login(root)
    assert '<html lang="zh-hans"' in client.get("/", headers={"Accept-Language": "zh-CN,zh;q=0.9"}).content.decode()
    client.post("/language/", {"language": "zh-hans", "next": "/"})
    assert '<html lang="zh-hans"' in client.get("/").content.decode()
    client.post("/language/", {"language": "en", "next": "/"})
    assert '<html lang="en"' in client.get("/", headers={"Accept-Language": "zh-CN"}).content.decode()


def test_a_foreign_host_is_refused(client: Client) -> None:
    assert client.get("/login/", headers={"Host": "evil.example"}).status_code == 400


def test_an_error_tells_no_secret(root: User, monkeypatch: pytest.MonkeyPatch) -> None:
    from playground.http import pages

    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("/a/secret/path")

    monkeypatch.setattr(pages, "render", broken)
    client = Client(raise_request_exception=False)
    client.force_login(root)
    answer = client.get("/")
    assert answer.status_code == 500
    assert "secret" not in answer.content.decode()
    assert "Traceback" not in answer.content.decode()


def test_no_row_has_a_page_of_its_own_outside_the_admin(root: User) -> None:
    """Django's way there fails over an id that is not of the kind it should be."""
    client = Client()
    client.force_login(root)
    for kind in ContentType.objects.all():
        assert client.get(f"/admin/r/{kind.pk}/1/").status_code == 404


def test_the_scheduler_page_leads_into_the_admin_only_those_whom_it_lets_in(alice: User, client: Client) -> None:
    for codename in ("watch_scheduler", "view_inferencerequest"):
        alice.user_permissions.add(Permission.objects.get(codename=codename))
    client.force_login(alice)
    assert "data-admin" not in client.get("/scheduler/").text
    User.objects.filter(pk=alice.pk).update(is_staff=True)
    assert "data-admin" in client.get("/scheduler/").text
