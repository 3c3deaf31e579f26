"""loginlink, the checks of the set-up, and static files."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.test import Client

from playground.checks import listening_problems, open_address_has_a_host_name, open_address_has_accounts
from playground.config import Settings
from playground.http.static import StaticFiles
from playground.models import InferenceRequest


def printed(*command: str) -> str:
    out = io.StringIO()
    call_command(*command, stdout=out)
    return out.getvalue()


def test_an_engine_s_name_fits_the_rows_of_its_requests() -> None:
    longest = InferenceRequest._meta.get_field("engine").max_length
    with pytest.raises(SystemExit, match=f"name has {longest + 1} characters; it may have {longest} at most"):
        printed("engine", "--name", "n" * (longest + 1))


def test_loginlink_makes_the_local_admin_and_signs_it_in(db: None, client: Client) -> None:
    (line,) = printed("loginlink").splitlines()
    assert line.startswith("http://127.0.0.1:8000/login/")
    assert client.get(line.removeprefix("http://127.0.0.1:8000"))["Location"] == "/"
    admin = User.objects.get()
    assert (admin.username, admin.is_superuser, admin.has_usable_password()) == ("admin", True, False)
    assert client.get("/admin/").status_code == 200
    printed("loginlink")
    assert User.objects.count() == 1


def test_loginlink_for_somebody(alice: User, client: Client) -> None:
    path = "/login/" + printed("loginlink", "--user", "alice").strip().split("/login/")[1]
    client.get(path)
    assert client.get("/api/conversations/").status_code == 200
    with pytest.raises(CommandError, match="nobody"):
        printed("loginlink", "--user", "nobody")


@pytest.mark.django_db
def test_an_open_address_needs_an_account_with_a_password(settings) -> None:
    settings.BATCHSCOPE = Settings(host="0.0.0.0")
    assert [problem.id for problem in listening_problems()] == ["playground.E001"]
    User.objects.create_superuser("admin", password=None)
    assert [problem.id for problem in listening_problems()] == ["playground.E001"]
    User.objects.create_user("alice", password="long enough")
    assert listening_problems() == []
    settings.BATCHSCOPE = Settings(host="127.0.0.1")
    User.objects.all().delete()
    assert listening_problems() == []


@pytest.mark.django_db
def test_an_open_address_is_refused_before_there_are_tables_but_migrate_is_not(settings, monkeypatch) -> None:
    settings.BATCHSCOPE = Settings(host="0.0.0.0")
    monkeypatch.setattr("django.db.connection.introspection.table_names", list)
    assert open_address_has_accounts(None, databases=["default"]) == []
    monkeypatch.setattr("playground.checks.account_with_password_exists", no_such_table)
    assert [problem.id for problem in listening_problems()] == ["playground.E001"]


def no_such_table() -> bool:
    raise OperationalError("no such table: auth_user")


def test_an_open_address_without_a_name_is_warned_about(settings) -> None:
    settings.BATCHSCOPE = Settings(host="0.0.0.0")
    assert [problem.id for problem in open_address_has_a_host_name(None)] == ["playground.W002"]
    settings.BATCHSCOPE = Settings(host="0.0.0.0", allowed_hosts="chat.example.org")
    assert open_address_has_a_host_name(None) == []


def test_static_files_are_served_uncollected(client: Client) -> None:
    answer = client.get("/static/admin/css/base.css")
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/css")
    assert int(answer["Content-Length"]) == len(answer.content) > 1000
    assert "Access-Control-Allow-Origin" not in answer
    again = client.get("/static/admin/css/base.css", headers={"If-Modified-Since": answer["Last-Modified"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/static/../manage.py").status_code == 404


def test_static_files_stand_a_missing_folder(tmp_path: Path, settings) -> None:
    settings.STATIC_ROOT = tmp_path / "not there"
    assert "/static/admin/css/base.css" in StaticFiles(lambda request: None).files
