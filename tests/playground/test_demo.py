"""The demo's requests through a real gateway and a worker with the fake engine: followed by nobody else, all end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import pytest_asyncio
from django.contrib.auth.models import User
from support import brokers
from support.workers import WorkerProcess

from playground import demo
from playground.gateway import Gateway
from playground.models import InferenceRequest

pytestmark = pytest.mark.django_db(transaction=True)
GRACE = 0.2  # seconds; the answers take longer


@pytest.fixture(scope="module")
def service() -> Any:
    with brokers.private() as valkey:
        worker = WorkerProcess(valkey.url, "w", step_seconds=0.05)
        yield valkey
        worker.close()


@pytest_asyncio.fixture
async def gateway(service: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("playground.gateway.UNFOLLOWED_GRACE", GRACE)
    made = Gateway(service.url, queue_limit=50, resume_grace=GRACE, conversation_grace=GRACE)
    yield made
    await made.close()


async def test_all_twelve_are_answered_though_no_browser_follows_them(gateway: Gateway) -> None:
    user = await User.objects.acreate(username="teacher", is_staff=True)
    request_ids = await demo.send(gateway, user, "en")
    assert len(request_ids) == 12
    while demo._following:
        await asyncio.sleep(0.05)
    rows = [await InferenceRequest.objects.aget(pk=request_id) for request_id in request_ids]
    assert {row.state for row in rows} == {"completed"}
    assert [row.answer.strip() for row in rows] == [row.asked for row in rows], "the fake engine repeats what was asked"


def test_each_kind_is_asked_in_turn() -> None:
    for language, first in (("en", "1+1=?"), ("zh-hans", "1+1=？"), ("", "1+1=?")):
        asked = demo.asked(language)
        assert [kind for kind, _ in asked] == [demo.SUM, demo.ADVERT, demo.NOVEL] * 4
        assert asked[0][1] == first
        assert len({text for _, text in asked}) == 12
