"""The admin: to look at, not to change; prompts only for those who may read them."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from playground.models import Conversation, InferenceRequest

REQUESTS = "/admin/playground/inferencerequest/"
CONVERSATIONS = "/admin/playground/conversation/"
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def row(alice: User) -> InferenceRequest:
    conversation = Conversation.objects.create(owner=alice, title=f"title {EVIL}")
    return InferenceRequest.objects.create(
        owner=alice,
        conversation=conversation,
        messages=[{"role": "user", "content": f"my secret question {EVIL}"}],
        params={"temperature": 0.5, "top_p": 1.0, "stop": [EVIL]},
        seed=11,
        state="failed",
        error_code="numerical_error",
        error_message=f"no number {EVIL}",
        answer=f"my secret answer {EVIL}",
        prompt_tokens=41,
        completion_tokens=17,
        receipt={"total": 12.5},
    )


def viewer_of(*codenames: str) -> Client:
    user = User.objects.create_user("viewer", password="x", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


def test_a_superuser_sees_all_of_it(row: InferenceRequest, root: User, client: Client) -> None:
    client.force_login(root)
    listing = client.get(REQUESTS).content.decode()
    for part in (str(row.pk), "alice", "41", "17", "temperature=0.5", "numerical_error"):
        assert part in listing
    assert "top_p" not in listing  # as by default
    page = client.get(f"{REQUESTS}{row.pk}/change/").content.decode()
    for part in ("my secret question", "my secret answer", "numerical_error", "12.5", "11"):
        assert part in page


def test_text_of_users_and_models_stays_text(row: InferenceRequest, root: User, client: Client) -> None:
    client.force_login(root)
    pages = [REQUESTS, f"{REQUESTS}{row.pk}/change/", CONVERSATIONS, f"{CONVERSATIONS}{row.conversation_id}/change/"]
    for path in pages:
        html = client.get(path).content.decode()
        assert "<img src=x" not in html
        assert "&lt;img src=x" in html


def test_prompts_need_a_permission_of_their_own(row: InferenceRequest) -> None:
    client = viewer_of("view_inferencerequest", "view_conversation")
    for path in (
        REQUESTS,
        f"{REQUESTS}{row.pk}/change/",
        CONVERSATIONS,
        f"{CONVERSATIONS}{row.conversation_id}/change/",
    ):
        answer = client.get(path)
        assert answer.status_code == 200
        assert b"secret" not in answer.content
        assert b"title &lt;" not in answer.content
    # nor may a search tell
    assert str(row.pk) not in client.get(REQUESTS, {"q": "secret"}).content.decode()


def test_with_the_permission_they_show(row: InferenceRequest) -> None:
    client = viewer_of("view_inferencerequest", "read_prompts")
    assert b"my secret question" in client.get(f"{REQUESTS}{row.pk}/change/").content
    assert str(row.pk) in client.get(REQUESTS, {"q": "secret"}).content.decode()


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


@pytest.mark.parametrize("query", [{"state": "failed"}, {"error_code": "numerical_error"}, {"q": "alice"}])
def test_filters_and_search(query: dict[str, str], row: InferenceRequest, root: User, client: Client) -> None:
    other = InferenceRequest.objects.create(owner=root, prompt="hi", seed=1, state="completed")
    client.force_login(root)
    key, value = next(iter(query.items()))
    listing = client.get(REQUESTS, query if key == "q" else {f"{key}__exact": value}).content.decode()
    assert str(row.pk) in listing
    assert str(other.pk) not in listing
