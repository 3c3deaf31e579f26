"""From the control stream to the engine and back to its status, with a real broker, a real worker and a toy model."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import orjson
import pytest
from support.fake_engine import FakeEngine
from support.toy import toy_engine

from inference.config import EngineConfig, SamplingParams
from inference.serving.client import Control, EngineClient, EngineStatus, Finish
from inference.serving.link import BrokerLink
from inference.serving.logs import Claim
from inference.serving.messages import Submission
from inference.serving.orders import Add, Stop
from inference.serving.worker import Worker


class RunningWorker:
    """A worker in a thread of its own, as in the engine's process."""

    def __init__(self, engine: Any, url: str, name: str) -> None:
        self.engine, self.orders = engine, SimpleQueue[Any]()
        status = EngineStatus(name, 1, "loading", False, time.time(), settings={"policy": engine.config.policy})
        self.link = BrokerLink(url, name, f"{name}@1", self.orders, status)
        self.link.start()
        engine.epoch = self.link.epoch()
        status = replace(status, epoch=engine.epoch)
        self.thread = threading.Thread(target=Worker(engine, self.link, self.orders, status).run)
        self.thread.start()

    def stop(self) -> None:
        self.orders.put(Stop())
        self.thread.join(20)
        self.link.close()
        assert not self.thread.is_alive()


@pytest.fixture
def worker(broker: Any, valkey: Any) -> Iterator[RunningWorker]:
    running = RunningWorker(toy_engine(), valkey.url, "w")
    yield running
    running.stop()


async def until(client: EngineClient, is_so: Callable[[EngineStatus], bool]) -> EngineStatus:
    """The status once that is so; the test's timeout is the bound."""
    while not (found := [status for status in await client.engines() if status.state == "ready" and is_so(status)]):
        await asyncio.sleep(0.02)
    return found[0]


def submission(request_id: str, answer: int = 6) -> Submission:
    return Submission(request_id, {"max_tokens": answer, "seed": 1, "ignore_eos": True}, prompt_ids=[5, 6, 7])


async def finish(client: EngineClient, request_id: str) -> Finish:
    async for event in client.follow(request_id):
        if isinstance(event, Finish):
            return event
    raise AssertionError("it has no end")


async def test_what_staff_asks_shows_in_the_status(client: EngineClient, worker: RunningWorker) -> None:
    status = await until(client, lambda status: True)
    most = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "kv_blocks": 64}
    assert (status.paused, status.slow_ms, status.settings["most"]) == (False, 0.0, most)
    await client.control(Control("w", "pause"))
    await client.control(Control("w", "slow", ms=250))
    await client.control(Control("w", "policy", policy="static"))
    await client.control(Control("w", "set", max_num_seqs=2, max_num_batched_tokens=16, kv_blocks=32))
    status = await until(client, lambda status: status.settings["kv_blocks"] == 32)
    assert (status.paused, status.slow_ms, status.busy) == (True, 250.0, False)
    assert [status.settings[name] for name in ("policy", "max_num_seqs", "max_num_batched_tokens")] == ["static", 2, 16]
    assert (status.settings["most"], status.kv["total"]) == (most, 32)
    await client.control(Control("w", "resume"))
    await until(client, lambda status: not status.paused)


async def test_an_engine_that_was_paused_answers_when_it_is_resumed(
    client: EngineClient, worker: RunningWorker
) -> None:
    await until(client, lambda status: True)
    await client.submit(submission("before"))
    expected = await finish(client, "before")
    await client.control(Control("w", "pause"))
    await until(client, lambda status: status.paused)
    for name in ("a", "b", "gone"):
        await client.submit(submission(name))
    status = await until(client, lambda status: status.waiting == 3)
    assert (status.running, status.busy) == (0, True)
    assert (await client.cancel("gone")) == "asked"
    assert (await finish(client, "gone")).finish_reason == "cancelled"
    await client.control(Control("w", "step"))
    status = await until(client, lambda status: status.running == 2)
    assert len((await client.log("a")).token_ids) <= 1
    first = status.progress_at
    await until(client, lambda status: status.progress_at > first)  # health sees that it is not hung
    await client.control(Control("w", "resume"))
    ends = [await finish(client, name) for name in ("a", "b")]
    assert [(e.finish_reason, e.completion_tokens) for e in ends] == [("length", 6)] * 2
    logs = [await client.log(name) for name in ("before", "a", "b")]
    assert len({log.text for log in logs}) == 1
    assert expected.completion_tokens == 6


async def test_while_paused_nothing_that_was_made_is_kept_back(client: EngineClient, worker: RunningWorker) -> None:
    await until(client, lambda status: True)
    await client.control(Control("w", "pause"))
    await until(client, lambda status: status.paused)
    await client.submit(submission("a", answer=40))
    await until(client, lambda status: status.waiting == 1)
    for _ in range(20):
        await client.control(Control("w", "step"))
    while len(tokens := (await client.log("a")).token_ids) < 10:
        await asyncio.sleep(0.02)
    assert len(tokens) <= 20
    records = await iterations(client)
    while sum(bool(record["rows"]) for record in records) < 20:
        await asyncio.sleep(0.02)
        records = await iterations(client)
    assert records[0]["waiting"][0]["reason"] == "paused"
    await client.cancel("a")
    assert (await finish(client, "a")).completion_tokens == 20


async def iterations(client: EngineClient) -> list[dict[str, Any]]:
    return [orjson.loads(line.data) for line in await client.newest_iterations("w", 30)]


async def test_bad_controls_are_told_in_the_log_and_stop_nothing(
    client: EngineClient, worker: RunningWorker, caplog: pytest.LogCaptureFixture
) -> None:
    await until(client, lambda status: True)
    caplog.set_level(logging.INFO, "batchscope.engine")
    stream = client.broker.key("control")
    for body in (b"{", b"[]", b"7", b"null", b"{}", b'{"engine": "w"}', b"\xff"):
        await client.broker.redis.xadd(stream, {"control": body})
    await client.broker.redis.xadd(stream, {"something": "else"})
    for control in (
        Control("w", "explode"),
        Control("w", ["pause"]),  # type: ignore[arg-type]
        Control("w", "step"),
        Control("w", "slow", ms=-1),
        Control("w", "slow", ms="soon"),  # type: ignore[arg-type]
        Control("w", "policy", policy="best"),
        Control("w", "set", max_num_seqs=99),
        Control("w", "set", kv_blocks=True),
        Control("w", "set"),
        Control("somebody else", "pause"),
        Control("w", "slow", ms=5, by="alice"),
    ):
        await client.control(control)
    status = await until(client, lambda status: status.slow_ms == 5)
    assert (status.paused, status.settings["max_num_seqs"], status.settings["policy"]) == (False, 8, "continuous")
    refused = [record for record in caplog.records if record.getMessage().startswith("control_refused: ")]
    assert len(refused) == 7 + 9
    assert "control: slow {'ms': 5}, asked by alice" in caplog.text
    await client.submit(submission("a"))
    assert (await finish(client, "a")).finish_reason == "length"


async def test_what_the_engine_alone_can_refuse_is_told_in_its_status(
    client: EngineClient, worker: RunningWorker
) -> None:
    status = await until(client, lambda status: True)
    assert (status.answered, status.refused) == (0, None)
    await client.control(Control("w", "pause"))
    await client.submit(submission("a", answer=18))  # of 3 tokens and 18: 5 blocks of 4, since the last is not fed back
    await until(client, lambda status: status.waiting == 1)
    begun = time.time()
    await client.control(Control("w", "set", kv_blocks=4))
    status = await until(client, lambda status: status.answered == 2)
    assert status.refused is not None
    assert (status.refused["action"], status.refused["text"]) == (
        "set",
        "kv_blocks would be 4, and a request that waits or runs here can need 5; wait until it has ended, or leave at "
        "least 5",
    )
    assert begun - 1 <= status.refused["at"] <= time.time() + 1
    assert status.settings["kv_blocks"] == 64
    await client.control(Control("w", "policy", policy="best"))
    status = await until(client, lambda status: status.answered == 3)
    assert status.refused is not None
    assert "policy is 'best'; it must be one of" in status.refused["text"]
    await client.broker.redis.xadd(client.broker.key("control"), {"control": b"{"})
    status = await until(client, lambda status: status.answered == 4)
    assert status.refused is not None
    assert status.refused["action"] == ""
    assert status.refused["text"].startswith("a control of 1 bytes came that can't be read")
    await client.control(Control("w", "resume"))
    status = await until(client, lambda status: status.answered == 5)
    assert status.refused is None
    assert (await finish(client, "a")).finish_reason == "length"


async def test_only_the_engine_that_is_named_obeys(client: EngineClient, worker: RunningWorker, valkey: Any) -> None:
    other = RunningWorker(FakeEngine(EngineConfig()), valkey.url, "other")
    try:
        while len(await client.engines()) < 2:
            await asyncio.sleep(0.02)
        await client.control(Control("other", "pause"))
        await until(client, lambda status: status.paused)
        assert {status.name: status.paused for status in await client.engines()} == {"w": False, "other": True}
        assert other.engine.controls.done == [("pause", {})]
    finally:
        other.stop()


async def test_a_paused_worker_with_work_stops_when_told(valkey: Any, broker: Any) -> None:
    await broker.create_group()  # a broker without one has lost its state, and then all orders are dropped
    running = RunningWorker(toy_engine(), valkey.url, "w")
    running.orders.put(Control("w", "pause"))
    running.orders.put(Add(Claim("r", 1, "t"), [5, 6], SamplingParams(max_tokens=3), "u", (), 1))
    running.stop()
    assert list(running.engine.scheduler.waiting) == ["r"]
