"""What staff can do to a request from its page, each with a permission of its own."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from support.admin import RECEIPT, AdminGateway, add, address, viewer

from inference.scheduling.request import RequestRefused
from inference.serving.client import UNREACHABLE
from playground.admin import engines
from playground.models import InferenceRequest

RUN_AGAIN, CANCEL_IT = "Run it again and compare", "Cancel it"


@pytest.fixture(autouse=True)
def gateway(monkeypatch: pytest.MonkeyPatch) -> AdminGateway:
    fake = AdminGateway()
    monkeypatch.setattr(engines, "get_gateway", lambda: fake)
    return fake


def page(client: Client, row: InferenceRequest) -> str:
    return client.get(address(row)).content.decode()


def replayed(owner: User, first: InferenceRequest, answer: str, **fields: Any) -> InferenceRequest:
    return add(owner, RECEIPT, replay_of=first, answer=answer, **fields)


@pytest.mark.parametrize("rights", [(), ("read_prompts",), ("replay",), ("cancel_any",)])
def test_a_button_is_there_for_those_who_may(rights: tuple[str, ...], alice: User) -> None:
    over, running = add(alice, RECEIPT), add(alice, prompt="hi", state="running")
    client = viewer(*rights)
    assert (RUN_AGAIN in page(client, over)) == ("replay" in rights)
    assert (CANCEL_IT in page(client, running)) == ("cancel_any" in rights)
    assert RUN_AGAIN not in page(client, running)
    assert CANCEL_IT not in page(client, over)


def test_a_post_without_the_right_does_nothing(alice: User, gateway: AdminGateway) -> None:
    over, running = add(alice, RECEIPT), add(alice, prompt="hi", state="running")
    client = viewer("read_prompts")
    assert client.post(address(over, "replay")).status_code == 403
    assert client.post(address(running, "cancel")).status_code == 403
    # Nor do people who are no staff, or nobody, whatever they hold.
    client.force_login(alice)
    assert client.post(address(running, "cancel")).status_code == 302
    assert Client().post(address(over, "replay")).status_code == 302
    assert gateway.cancelled == []
    assert InferenceRequest.objects.count() == 2


def test_a_get_or_a_forged_post_does_nothing(alice: User, root: User, gateway: AdminGateway) -> None:
    row = add(alice, prompt="hi", state="running")
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(root)
    for action in ("cancel", "replay"):
        assert strict.get(address(row, action)).status_code == 405
        assert strict.post(address(row, action)).status_code == 403
    assert gateway.cancelled == []


def test_cancel(alice: User, gateway: AdminGateway) -> None:
    row = add(alice, prompt="hi", state="running")
    client = viewer("cancel_any")
    before = client.get(address(row, "pulse")).json()["pulse"]
    answer = client.post(address(row, "cancel"), follow=True)
    assert gateway.cancelled == [str(row.pk)]
    assert "Its end is asked for" in answer.content.decode()
    asked = client.get(address(row, "pulse")).json()["pulse"]
    InferenceRequest.objects.update(state="cancelled")
    assert before != asked != ""
    assert client.get(address(row, "pulse")).json()["pulse"] == ""
    assert "It was over already." in client.post(address(row, "cancel"), follow=True).content.decode()
    assert gateway.cancelled == [str(row.pk)]


def test_replay_is_the_same_request_again(alice: User) -> None:
    said = [{"role": "user", "content": "hi"}]
    row = add(alice, RECEIPT, messages=said, params={"temperature": 0.5, "stop": ["x"]}, seed=77, ref="mine")
    client = viewer("replay")
    html = client.post(address(row, "replay"), follow=True).content.decode()
    again = row.replays.get()
    assert (again.messages, again.seed, again.owner.username) == (said, 77, "viewer")
    assert (again.params["temperature"], again.params["stop"]) == (0.5, ["x"])
    assert (again.conversation, again.ref) == (None, "")
    assert "It runs; the verdict appears here." in html
    assert "data-pulse" in html
    # One at a time, and no replay of a replay.
    assert "a replay of this request runs already" in client.post(address(row, "replay"), follow=True).content.decode()
    again.state = "completed"
    again.save()
    assert "is a replay itself" in client.post(address(again, "replay"), follow=True).content.decode()
    assert RUN_AGAIN not in page(client, again)
    assert row.replays.count() == 1


def test_what_is_not_over_is_not_replayed(alice: User) -> None:
    row = add(alice, prompt="hi", state="running")
    assert "is not over yet" in viewer("replay").post(address(row, "replay"), follow=True).content.decode()
    assert not row.replays.exists()


def test_a_replay_that_is_refused_says_why(alice: User, gateway: AdminGateway) -> None:
    gateway.refusal = RequestRefused("queue_full", "50 requests wait or run, and 50 are allowed; try again later")
    html = viewer("replay").post(address(add(alice, RECEIPT), "replay"), follow=True).content.decode()
    assert "It was not started: 50 requests wait or run" in html


def test_parameters_that_are_no_more_are_refused_with_a_reason(alice: User) -> None:
    row = add(alice, RECEIPT, prompt="hi", params={"of_an_older_version": 1})
    html = viewer("replay").post(address(row, "replay"), follow=True).content.decode()
    assert "of_an_older_version" in html
    assert "is not a sampling parameter" in html
    assert not row.replays.exists()


def test_same_answer_yes_by_tokens(alice: User, gateway: AdminGateway) -> None:
    row = add(alice, RECEIPT, answer="a b c")
    again = replayed(alice, row, "a b c")
    for each in (row, again):
        gateway.client.keep(each, [5, 6, 7])
    client = viewer()
    assert "Same answer: yes, all 4 tokens." in page(client, row)
    gateway.client.logs.clear()  # the verdict outlives the logs
    assert "Same answer: yes, all 4 tokens." in page(client, row)
    assert "Same answer: yes, all 4 tokens." in page(client, again)


def test_where_the_answers_differ_is_told_and_the_words_only_to_readers(alice: User, gateway: AdminGateway) -> None:
    row = add(alice, RECEIPT, answer="the capital is Paris, of course")
    again = replayed(alice, row, "the capital is Lyon <b>today</b>")
    gateway.client.keep(row, [1, 2, 3, 40, 5])
    gateway.client.keep(again, [1, 2, 3, 50])
    html = page(viewer(), row)
    assert "it differs at token 4" in html
    assert "capital" not in html
    assert "Lyon" not in html
    told = page(viewer("read_prompts", name="reader"), row)
    assert "…the capital is <mark>Paris, of course</mark>" in told
    assert "…the capital is <mark>Lyon &lt;b&gt;today&lt;/b&gt;</mark>" in told


def test_without_the_logs_texts_are_compared_and_the_page_says_so(alice: User, gateway: AdminGateway) -> None:
    row = add(alice, RECEIPT, answer="abcdef")
    replayed(alice, row, "abcxyz")
    gateway.client.failure = UNREACHABLE[0]("away")
    html = page(viewer(), row)
    assert "it differs at character 4" in html
    assert "Compared as texts" in html


def test_a_replay_that_failed_says_so(alice: User) -> None:
    row = add(alice, RECEIPT, answer="abc")
    replayed(alice, row, "", state="failed", finish_reason="error", error_code="internal", error_message="no luck")
    assert "It failed: no luck" in page(viewer(), row)
