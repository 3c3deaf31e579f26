"""The broker thread inside the engine's process: what it takes in reaches the step thread in good order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest
from support.fake_engine import FakeTokenizer

from inference.config import RequestRefused
from inference.serving import intake, prompts
from inference.serving.link import BrokerLink
from inference.serving.messages import EngineStatus, Submission
from inference.serving.orders import Add, Cancel, DropAll

FORMAT = {"response_format": {"type": "regex", "regex": "a"}}


class Compiling:
    """Stands in for the compiler: a grammar takes until `done` is set. `refusal` is raised then, if there is one."""

    def __init__(self) -> None:
        self.begun, self.done = threading.Event(), threading.Event()
        self.refusal: Exception | None = None

    def __call__(self, tokenizer: Any, params: Any) -> Any:
        if params.response_format is None:
            return None
        self.begun.set()
        assert self.done.wait(20)
        if self.refusal is not None:
            raise self.refusal
        return "a grammar"


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiling]:
    fake = Compiling()
    monkeypatch.setattr(prompts, "_grammar", fake)
    yield fake
    fake.done.set()


@pytest.fixture
def orders(broker: Any, valkey: Any, compiling: Compiling) -> Iterator[SimpleQueue[Any]]:
    """The orders of a link that is taking requests in."""
    queue: SimpleQueue[Any] = SimpleQueue()
    made = BrokerLink(valkey.url, "w", "w@1", queue, EngineStatus("w", 1, "ready", False, time.time()))
    made.start()
    made.serve(FakeTokenizer(), 8)
    yield queue
    compiling.done.set()
    made.close()


def next_order(orders: SimpleQueue[Any]) -> Any:
    """The next one but for DropAll, which a link gives when it makes the consumer group."""
    while isinstance(order := orders.get(timeout=20), DropAll):
        pass
    return order


async def test_a_grammar_that_takes_long_keeps_nobody_waiting(client: Any, orders: Any, compiling: Compiling) -> None:
    await client.submit(Submission("slow", FORMAT, prompt="a b"))
    assert compiling.begun.wait(20)
    await client.submit(Submission("quick", {}, prompt="c", submitted_at=5.0))
    quick = next_order(orders)
    assert (quick.claim.request_id, quick.grammar, quick.submitted_at) == ("quick", None, 5.0)
    compiling.done.set()
    slow = next_order(orders)
    assert isinstance(slow, Add)
    assert (slow.claim.request_id, slow.grammar) == ("slow", "a grammar")


async def test_a_cancel_that_comes_meanwhile_is_not_lost(client: Any, orders: Any, compiling: Compiling) -> None:
    await client.submit(Submission("slow", FORMAT, prompt="a b"))
    assert compiling.begun.wait(20)
    assert await client.cancel("slow") == "asked"
    await client.submit(Submission("marker", {}, prompt="c"))
    assert next_order(orders).claim.request_id == "marker"
    # The cancel came by another way than the marker: let it arrive.
    await client.cancel("marker")
    assert next_order(orders) == Cancel("marker")
    compiling.done.set()
    assert next_order(orders).claim.request_id == "slow"
    assert next_order(orders) == Cancel("slow")


async def test_a_refusal_ends_the_request(client: Any, orders: Any, compiling: Compiling) -> None:
    compiling.refusal = RequestRefused("bad_params", "response_format: no")
    compiling.done.set()
    await client.submit(Submission("slow", FORMAT, prompt="a b"))
    [finish] = [event async for event in client.follow("slow")]
    assert (finish.finish_reason, finish.error_code, finish.error_message) == (
        "error",
        "bad_params",
        "response_format: no",
    )


async def test_what_was_taken_away_meanwhile_is_not_run(
    client: Any, orders: Any, broker: Any, compiling: Compiling
) -> None:
    await client.submit(Submission("slow", FORMAT, prompt="a b"))
    assert compiling.begun.wait(20)
    await broker.redis.flushall()  # the link hears of it when it next reads
    while not isinstance(orders.get(timeout=20), DropAll):
        pass
    await client.submit(Submission("marker", {}, prompt="c"))
    assert next_order(orders).claim.request_id == "marker"
    compiling.done.set()
    await client.submit(Submission("another", {}, prompt="c"))
    assert next_order(orders).claim.request_id == "another"
    assert orders.empty()


def test_the_intake_renders_with_what_is_tested_here() -> None:
    assert intake.render is prompts.render
