"""How many messages a socket may send, and what becomes of those that are too many."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from support.sockets import Browser

from playground.access.keys import create_key
from playground.sockets import message_rate
from playground.sockets.message_rate import ONE, MessageRate


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_so_many_messages_a_second_and_some_at_once() -> None:
    clock = Clock()
    rate = MessageRate(20, clock)
    assert [rate.take() for _ in range(61)] == [True] * 60 + [False]
    clock.now += 1.0
    assert [rate.take() for _ in range(21)] == [True] * 20 + [False]
    clock.now += 3600
    assert sum(rate.take() for _ in range(100)) == 60


def test_a_large_message_counts_as_several() -> None:
    clock = Clock()
    rate = MessageRate(20, clock)
    assert [rate.take(size) for size in (1, ONE, ONE + 1, 16 * ONE)] == [True] * 4
    assert sum(rate.take() for _ in range(100)) == 60 - 1 - 1 - 2 - 16
    clock.now += 0.06
    assert rate.take(16 * ONE)  # it has its turn, and is paid for afterwards
    clock.now += 0.7
    assert not rate.take()
    clock.now += rate.seconds_left
    assert rate.take()


def test_a_breach_is_abuse_once_it_has_lasted() -> None:
    clock = Clock()
    rate = MessageRate(1, clock)
    while clock.now < 100 + message_rate.PATIENCE + 4:
        clock.now += 0.25
        rate.take()
        if clock.now < 100 + message_rate.PATIENCE:
            assert not rate.is_abuse
    assert rate.is_abuse
    calm = MessageRate(1, clock)
    for _ in range(20):
        for _ in range(5):
            calm.take()
        assert not calm.is_abuse
        clock.now += message_rate.LULL + 2


@pytest.mark.django_db(transaction=True)
async def test_too_many_messages_are_answered_and_then_end_the_socket(
    alice: User, gateway: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.BATCHSCOPE = settings.BATCHSCOPE.model_copy(update={"messages_per_second": 1})
    _, secret = await sync_to_async(create_key)(alice, "k")
    program = await Browser.with_key(secret)
    for i in range(4):
        await program.ask(type="generate", prompt="slow", ref=str(i))
    error = await program.hear("error")
    assert (error["code"], error["ref"]) == ("rate_limited", "3")
    assert 0 < error["retry_after"] <= 1
    for _ in range(60):  # acknowledging is nearly free
        await program.ask(type="ack", request_id="r", seq=1)
    monkeypatch.setattr(message_rate, "PATIENCE", 0.0)
    await program.ask(type="ping")
    closing = await program.closing()
    assert closing["code"] == 1008
    assert "more than 1 messages a second" in closing["reason"]
    await program.disconnect()
