"""Texts that are older than they are kept: gone from rows and conversations; figures stay."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError
from django.test import Client
from django.utils import timezone
from support import brokers
from support.admin import RECEIPT, add

from inference.config import RequestRefused
from playground import gateway, replay, retention
from playground.models import Conversation, InferenceRequest

SECRET = "my secret"
ASKED = {"messages": [{"role": "user", "content": SECRET}], "answer": SECRET, "prompt_tokens": 5}


def aged(row: Any, days: float, field: str = "created_at") -> Any:
    type(row).objects.filter(pk=row.pk).update(**{field: timezone.now() - timedelta(days=days)})
    return row


def texts_of(row: InferenceRequest) -> str:
    return repr(InferenceRequest.objects.filter(pk=row.pk).values().get())


def test_old_texts_go_and_figures_stay(alice: User) -> None:
    params = {"temperature": 0.5, "stop": [SECRET], "response_format": {"type": "regex", "pattern": SECRET}}
    old = [
        aged(add(alice, RECEIPT, **ASKED, params=params, ref=SECRET, error_message=SECRET), 8),
        aged(add(alice, RECEIPT, prompt=SECRET, state="failed"), 8),
        aged(add(alice, RECEIPT, prompt_ids=[77001], state="cancelled"), 8),
    ]
    young = aged(add(alice, RECEIPT, **ASKED), 6)
    running = aged(add(alice, **ASKED), 8)
    assert retention.forget(7) == 3
    for row in old:
        assert SECRET not in texts_of(row)
        assert "77001" not in texts_of(row)
    first = old[0]
    first.refresh_from_db()
    assert (first.messages, first.prompt, first.prompt_ids, first.answer) == (None, None, None, "")
    assert (first.params, first.prompt_tokens, first.total_ms) == ({"temperature": 0.5}, 5, 1000.0)
    assert first.receipt == RECEIPT
    assert SECRET in texts_of(young)
    assert SECRET in texts_of(running)  # it is not over
    assert retention.forget(7) == 0


def test_more_than_fit_one_transaction(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "AT_ONCE", 2)
    rows = [aged(add(alice, RECEIPT, **ASKED), 8) for _ in range(5)]
    for row in rows:
        conversation = aged(Conversation.objects.create(owner=alice, title=SECRET), 8, "updated_at")
        InferenceRequest.objects.filter(pk=row.pk).update(conversation=conversation)
    assert retention.forget(7) == 5
    assert not Conversation.objects.exists()
    assert InferenceRequest.objects.count() == 5


def test_conversations_go_once_nothing_is_said_in_them(alice: User) -> None:
    old, used, busy = (Conversation.objects.create(owner=alice, title=SECRET) for _ in range(3))
    in_old = aged(add(alice, RECEIPT, **ASKED, conversation=old), 8)
    in_used = aged(add(alice, RECEIPT, **ASKED, conversation=used), 8)
    aged(add(alice, **ASKED, conversation=busy), 8)
    aged(old, 8, "updated_at")
    aged(busy, 8, "updated_at")
    retention.forget(7)
    assert set(Conversation.objects.all()) == {used, busy}
    in_old.refresh_from_db()
    assert in_old.conversation is None
    assert SECRET not in texts_of(in_used)


def test_a_turn_whose_texts_are_gone_is_not_shown_as_an_empty_one(alice: User, client: Client) -> None:
    conversation = Conversation.objects.create(owner=alice)
    aged(add(alice, RECEIPT, **ASKED, conversation=conversation), 8)
    kept = add(alice, RECEIPT, **ASKED, conversation=conversation)
    retention.forget(7)
    client.force_login(alice)
    turns = client.get(f"/api/conversations/{conversation.pk}/").json()["turns"]
    assert [turn["request_id"] for turn in turns] == [str(kept.pk)]


@pytest.mark.django_db(transaction=True)
async def test_what_is_not_kept_cannot_be_run_again(alice: User) -> None:
    row = await InferenceRequest.objects.acreate(owner=alice, seed=1, state="completed", finish_reason="stop")
    with pytest.raises(RequestRefused, match="is not kept any more"):
        await replay.start(None, row, alice)  # type: ignore[arg-type]


@pytest.mark.django_db(transaction=True)
async def test_the_gateway_forgets_and_an_error_does_not_end_that(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    done = asyncio.Event()
    days_asked: list[float] = []
    forget = retention.forget

    def failing_once(days: float) -> int:
        days_asked.append(days)
        if len(days_asked) == 1:
            raise OperationalError("database is locked")
        forget(days)
        loop.call_soon_threadsafe(done.set)
        return 0

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(retention, "forget", failing_once)
    monkeypatch.setattr(retention, "FORGET_EVERY", 0.02)
    row = await InferenceRequest.objects.acreate(owner=alice, seed=1, state="completed", prompt=SECRET)
    await InferenceRequest.objects.filter(pk=row.pk).aupdate(created_at=timezone.now() - timedelta(days=3))
    with brokers.private() as broker:
        made = gateway.Gateway(broker.url, queue_limit=5, resume_grace=1, conversation_grace=1, prompt_days=2.5)
        await made.ensure_started()
        await asyncio.wait_for(done.wait(), 10)
        await made.close()
    assert days_asked[:2] == [2.5, 2.5]
    await row.arefresh_from_db()
    assert row.prompt is None


def test_without_the_setting_nothing_is_forgotten() -> None:
    from playground.config import Settings

    assert Settings().prompt_days is None
    assert Settings(prompt_days="30").prompt_days == 30.0
    with pytest.raises(ValueError, match="prompt_days"):
        Settings(prompt_days=0)
