"""Wrong passwords and wrong login links: ten a minute from one address, and no door beside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from playground.access import attempts
from playground.access.login_links import create_link

PASSWORD = "password of alice"


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    attempts._own_windows.cache_clear()
    yield
    attempts._own_windows.cache_clear()


def enter(password: str, name: str = "alice", address: str = "192.0.2.1", path: str = "/login/") -> Any:
    return Client().post(path, {"username": name, "password": password}, REMOTE_ADDR=address)


def test_after_ten_wrong_passwords_the_right_one_does_not_help(alice: User, bob: User) -> None:
    for n in range(attempts.MOST):
        assert enter(f"wrong {n}").status_code == 200
    shut = enter(PASSWORD)
    assert shut.status_code == 429
    assert 0 < int(shut["Retry-After"]) <= attempts.SECONDS
    assert f"Try again in {shut['Retry-After']} s." in shut.content.decode()
    assert "_auth_user_id" not in shut.client.session
    assert enter(PASSWORD, name="ALICE").status_code == 429  # the same account, written differently
    assert enter(PASSWORD, name="\t alice\u2003\u00a0").status_code == 429  # spaces that the form takes away
    assert enter(PASSWORD, name="ａｌｉｃｅ").status_code == 429
    # Another account from here, and the account from elsewhere, are no worse off.
    assert enter("password of bob", name="bob").status_code == 302
    assert enter(PASSWORD, address="192.0.2.2").status_code == 302


def test_right_passwords_do_not_count(alice: User) -> None:
    for _ in range(attempts.MOST + 5):
        assert enter(PASSWORD).status_code == 302
    for n in range(attempts.MOST):
        assert enter(f"wrong {n}").status_code == 200
    assert enter(PASSWORD).status_code == 429


def test_the_door_opens_again(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(attempts.MOST + 1):
        enter(f"wrong {n}")
    assert enter(PASSWORD).status_code == 429
    later = attempts._own_windows()._here
    for key in later.expirations:
        later.expirations[key] -= attempts.SECONDS
    assert enter(PASSWORD).status_code == 302


def test_names_that_are_no_text_are_counted_too(alice: User) -> None:
    form = "username=%ED%A0%80%00&password=x"  # half a surrogate pair, and NUL
    answers = [
        Client().post("/login/", form, content_type="application/x-www-form-urlencoded").status_code
        for _ in range(attempts.MOST + 1)
    ]
    assert answers == [200] * attempts.MOST + [429]


def test_the_admin_has_no_door_of_its_own(alice: User, root: User) -> None:
    answer = enter("password of root", name="root", path="/admin/login/?next=/admin/auth/user/")
    assert (answer.status_code, answer["Location"]) == (302, "/login/?next=/admin/auth/user/")
    assert "_auth_user_id" not in answer.client.session
    client = Client()
    client.force_login(alice)
    assert client.get("/admin/", follow=True).status_code == 403  # and no circle of redirects


def test_wrong_login_links_count_and_a_right_one_still_works(root: User) -> None:
    used = create_link(root, "")
    assert Client().get(used).status_code == 302
    statuses = [Client().get(used).status_code, *(Client().get(f"/login/guess{n}/").status_code for n in range(9))]
    assert statuses == [410] * attempts.MOST
    shut = Client().get(used)
    assert shut.status_code == 429
    assert f"Try again in {shut['Retry-After']} s." in shut.content.decode()
    assert Client().get("/login/guess/", REMOTE_ADDR="192.0.2.9").status_code == 410
    assert Client().get(create_link(root, "")).status_code == 302
