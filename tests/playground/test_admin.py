"""The admin: to look at, not to change; prompts only for those who may read them, and not without a record of it."""

from __future__ import annotations

import logging
import re
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils import timezone, translation
from support.admin import CONVERSATIONS, READINGS, RECEIPT, REQUESTS, add, address, viewer

from playground.admin.accounts import permission_label
from playground.models import Conversation, InferenceRequest, PromptRead

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def row(alice: User) -> InferenceRequest:
    conversation = Conversation.objects.create(owner=alice, title=f"title {EVIL}")
    return add(
        alice,
        RECEIPT,
        conversation=conversation,
        messages=[{"role": "user", "content": f"my secret question {EVIL}"}],
        ref=f"label {EVIL}",
        params={"temperature": 0.5, "top_p": 1.0, "stop": [EVIL]},
        state="failed",
        error_code="numerical_error",
        error_message=f"no number {EVIL}",
        answer=f"my secret answer {EVIL}",
        prompt_tokens=41,
        completion_tokens=17,
    )


def test_a_superuser_sees_all_of_it(row: InferenceRequest, root: User, client: Client) -> None:
    client.force_login(root)
    listing = client.get(REQUESTS).content.decode()
    for part in (str(row.pk), "alice", "41", "17", "temperature=0.5", "numerical_error"):
        assert part in listing
    assert "top_p" not in listing  # as by default
    page = client.get(address(row)).content.decode()
    for part in ("my secret question", "my secret answer", "numerical_error", "temperature=0.5", ">11<"):
        assert part in page


def test_text_of_users_and_models_stays_text(row: InferenceRequest, root: User, client: Client) -> None:
    client.force_login(root)
    for path in (REQUESTS, address(row), CONVERSATIONS, f"{CONVERSATIONS}{row.conversation_id}/change/"):
        html = client.get(path).content.decode()
        assert "<img src=x" not in html
        assert "&lt;img src=x" in html
        assert not re.search(r" style=|<style|<script>", html)  # the policy forbids them


def test_prompts_need_a_permission_of_their_own(row: InferenceRequest) -> None:
    client = viewer()
    for path in (REQUESTS, address(row), CONVERSATIONS, f"{CONVERSATIONS}{row.conversation_id}/change/"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert b"secret" not in answer.content
        assert b"title &lt;" not in answer.content
    # nor may a search tell
    assert str(row.pk) not in client.get(REQUESTS, {"q": "secret"}).content.decode()
    assert not PromptRead.objects.exists()


def test_with_the_permission_they_show(row: InferenceRequest) -> None:
    client = viewer("read_prompts")
    assert b"my secret question" in client.get(address(row)).content
    for term in ("secret question", "secret answer"):
        assert str(row.pk) in client.get(REQUESTS, {"q": term}).content.decode()


def test_the_right_to_read_is_not_the_right_to_view(row: InferenceRequest) -> None:
    user = User.objects.create_user("reader", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=("read_prompts", "replay", "cancel_any")))
    client = Client()
    client.force_login(user)
    assert client.get(REQUESTS).status_code == client.get(address(row)).status_code == 403
    assert client.post(address(row, "replay")).status_code == client.post(address(row, "cancel")).status_code == 403
    assert client.get(address(row, "pulse")).status_code == 403
    assert not PromptRead.objects.exists()


def test_reading_is_written_down(row: InferenceRequest, caplog: pytest.LogCaptureFixture) -> None:
    client = viewer("read_prompts")
    with caplog.at_level(logging.INFO, "batchscope.admin"):
        client.get(address(row))
        client.get(address(row))  # a reload is still the same reading
        client.get(f"{CONVERSATIONS}{row.conversation_id}/change/")
        client.get(CONVERSATIONS)
        client.get(REQUESTS)  # nothing to read there
        client.get(REQUESTS, {"q": "secret"})
        client.get(REQUESTS, {"q": str(row.pk)})  # looks at ids alone
    read = list(PromptRead.objects.order_by("id").values_list("reader_name", "what", "subject"))
    assert read == [
        ("viewer", "request", row.pk),
        ("viewer", "conversation", row.conversation_id),
        ("viewer", "titles", None),
        ("viewer", "search", None),
    ]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4
    assert str(row.pk) in lines[0]
    assert "secret" not in "".join(lines)
    PromptRead.objects.update(read_at=timezone.now() - timedelta(minutes=2))
    client.get(address(row))
    assert PromptRead.objects.filter(what="request").count() == 2


def test_the_record_of_readings_is_there_to_look_at(row: InferenceRequest, root: User, client: Client) -> None:
    client.force_login(root)
    client.get(address(row))
    reading = PromptRead.objects.get()
    assert address(row) in client.get(READINGS).content.decode()
    page = f"{READINGS}{reading.pk}/change/"
    assert "root" in client.get(page).content.decode()
    assert client.post(page, {"reader_name": "nobody"}).status_code == 403
    assert client.post(f"{READINGS}{reading.pk}/delete/", {"post": "yes"}).status_code == 403
    assert viewer("read_prompts").get(READINGS).status_code == 403
    # It outlives the account and what was read.
    InferenceRequest.objects.all().delete()
    User.objects.filter(pk=root.pk).delete()
    reading.refresh_from_db()
    assert (reading.reader, reading.reader_name, reading.subject) == (None, "root", row.pk)


@pytest.mark.parametrize("base", [REQUESTS, CONVERSATIONS])
def test_nothing_can_be_changed(base: str, row: InferenceRequest, root: User, client: Client) -> None:
    client.force_login(root)
    pk: Any = row.pk if base == REQUESTS else row.conversation_id
    assert client.get(f"{base}add/").status_code == 403
    assert client.post(f"{base}{pk}/change/", {"state": "completed", "title": "changed"}).status_code == 403
    assert client.post(f"{base}{pk}/delete/", {"post": "yes"}).status_code == 403
    client.post(base, {"action": "delete_selected", "_selected_action": [str(pk)], "post": "yes"})
    row.refresh_from_db()
    assert (row.state, row.conversation.title) == ("failed", f"title {EVIL}")


def test_a_page_that_is_not_there(root: User, client: Client) -> None:
    client.force_login(root)
    assert client.get(f"{REQUESTS}{uuid.uuid4()}/change/")["Location"] == "/admin/"
    assert client.post(f"{REQUESTS}{uuid.uuid4()}/cancel/").status_code == 404
    assert client.get(f"{REQUESTS}{uuid.uuid4()}/pulse/").status_code == 404


def test_permissions_have_clear_names_in_both_languages(root: User, client: Client) -> None:
    client.force_login(root)
    form = client.get(f"/admin/auth/user/{root.pk}/change/").content.decode()
    for name in (
        "Can read what users asked and what was answered",
        "Can run a request again to compare the answers",
        "Can cancel anybody&#x27;s request",
    ):
        assert name in form
    stock = Permission.objects.get(codename="view_inferencerequest")
    own = Permission.objects.get(codename="replay")
    with translation.override("en"):
        assert permission_label(own).endswith("| Can run a request again to compare the answers")
        assert permission_label(stock).endswith("| Can view request")
    assert client.get("/admin/auth/group/add/").status_code == 200
