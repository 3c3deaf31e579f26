"""Receipts as clients get them: a socket, the gateway, a broker, and the real engine with a toy model in its worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from django.contrib.auth.models import User
from support import brokers
from support.sockets import Browser
from support.workers import WorkerProcess

from inference.scheduling.receipt import PARTS
from playground.gateway import Gateway
from playground.models import InferenceRequest

pytestmark = pytest.mark.django_db(transaction=True)
SLACK = 250.0  # ms


@pytest.fixture(scope="module")
def valkey() -> Iterator[Any]:
    with brokers.private() as server:
        yield server


@pytest_asyncio.fixture
async def gateway(valkey: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gateway]:
    from playground.sockets import base, chat

    gateway = Gateway(valkey.url, queue_limit=50, resume_grace=60, conversation_grace=60)
    for module in (base, chat):
        monkeypatch.setattr(module, "get_gateway", lambda: gateway)
    await gateway.client.broker.redis.flushall()
    yield gateway
    await gateway.close()


@pytest.fixture
def worker(valkey: Any, gateway: Gateway) -> Iterator[WorkerProcess]:
    worker = WorkerProcess(valkey.url, "toy", 0.01)
    yield worker
    worker.close()


async def asked(user: User, number: int) -> tuple[dict[str, Any], float, float]:
    """The finish of one request on a socket of its own, and what the client saw, ms: to the first token, and in all."""
    browser = await Browser.of(user)
    begun = time.time()
    await browser.ask(
        type="generate", ref=str(number), prompt="abc" * (1 + number), params={"max_tokens": 30, "ignore_eos": True}
    )
    first = 0.0
    while True:
        frame = await browser.receive_json_from(60)
        if frame["type"] == "delta":
            first = first or time.time() - begun
        if frame["type"] == "finished":
            break
    seen = time.time() - begun
    await browser.disconnect()
    return frame, 1000 * first, 1000 * seen


async def test_a_receipt_is_what_the_client_saw(alice: User, gateway: Gateway, worker: WorkerProcess) -> None:
    answers = await asyncio.gather(*(asked(alice, number) for number in range(8)))
    for finished, first, seen in answers:
        receipt = finished["receipt"]
        assert min(receipt[part] for part in PARTS) >= 0
        assert sum(receipt[part] for part in PARTS) == pytest.approx(receipt["total"], abs=0.01)
        assert receipt["total"] <= seen + SLACK
        assert receipt["details"]["ttft"] <= first + SLACK
        assert receipt["deliver"] > 0
        assert "accept" in receipt["details"]["queue"]
    for finished, _, _ in answers:
        await until_row_has(finished["request_id"], finished["receipt"])


async def until_row_has(request_id: str, receipt: dict[str, Any]) -> None:
    """The row is corrected a moment later; the test's timeout is the bound."""
    while (await InferenceRequest.objects.aget(pk=request_id)).receipt != receipt:
        await asyncio.sleep(0.05)


async def test_who_asks_again_gets_the_same_receipt(alice: User, gateway: Gateway, worker: WorkerProcess) -> None:
    finished, _, _ = await asked(alice, 1)
    await until_row_has(finished["request_id"], finished["receipt"])
    browser = await Browser.of(alice)
    await browser.ask(type="resume", request_id=finished["request_id"], after_seq=0)
    again = await browser.hear("finished")
    assert again == finished
    await browser.disconnect()


async def test_a_request_that_no_engine_had_has_a_receipt(alice: User, gateway: Gateway) -> None:
    browser = await Browser.of(alice)
    await browser.ask(type="generate", prompt="abc")
    request_id = (await browser.hear("accepted"))["request_id"]
    await browser.ask(type="cancel", request_id=request_id)
    receipt = (await browser.hear("finished"))["receipt"]
    assert receipt["queue"] == receipt["details"]["queue"]["accept"] > 0
    assert sum(receipt[part] for part in PARTS) == pytest.approx(receipt["total"], abs=0.01)
    row = await InferenceRequest.objects.aget(pk=request_id)
    assert row.receipt["queue"] == receipt["queue"]
    await browser.disconnect()


async def test_what_the_broker_lost_was_stalled(alice: User, gateway: Gateway, worker: WorkerProcess) -> None:
    browser = await Browser.of(alice)
    await browser.ask(type="generate", prompt="abc", params={"max_tokens": 200, "ignore_eos": True})
    request_id = (await browser.hear("accepted"))["request_id"]
    await browser.hear("delta")
    while (row := await InferenceRequest.objects.aget(pk=request_id)).started_at is None:
        await asyncio.sleep(0.02)
    assert row.state == "running"
    assert row.first_token_at is not None
    assert row.created_at <= row.started_at <= row.first_token_at
    begun = time.time()
    await gateway.client.broker.redis.flushall()
    finished = await browser.hear("finished")
    receipt = finished["receipt"]
    assert receipt["stalled"] >= 1000 * (begun - row.started_at.timestamp())
    assert sum(receipt[part] for part in PARTS) == pytest.approx(receipt["total"], abs=0.01)
    assert receipt["details"]["queue"].get("accept", 0.0) < receipt["stalled"]
    assert receipt["details"]["ttft"] == pytest.approx(
        1000 * (row.first_token_at - row.created_at).total_seconds(), abs=SLACK
    )
    await browser.disconnect()
