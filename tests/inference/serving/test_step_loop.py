"""The worker's step loop alone: orders in, entries out, a real queue and no broker."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from support.fake_engine import FakeEngine
from support.toy import toy_engine

from inference.config import EngineConfig, SamplingParams
from inference.serving import step_loop
from inference.serving.logs import Claim
from inference.serving.messages import EngineStatus
from inference.serving.orders import Add, Cancel, Drop, Stop
from inference.serving.step_loop import Worker


class FillingEngine(FakeEngine):
    """Runs nothing before it has a batch of two, or else for an hour."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.steps = 0
        self.grammars: list[Any] = []

    def seconds_to_next_step(self) -> float:
        full = len(self._running) > 1 or any(run.reason for run in self._running.values())
        return 0.0 if full else 3600.0

    def add_request(self, *args: Any, grammar: Any = None, **kwargs: Any) -> str:
        self.grammars.append(grammar)
        return super().add_request(*args, grammar=grammar, **kwargs)

    def step(self) -> SimpleNamespace:
        self.steps += 1
        if self.seconds_to_next_step():
            return SimpleNamespace(deltas=[], finishes=[], record=None)
        return super().step()


class FakeLink:
    """Keeps what was published. `heartbeats`: statuses since the last call of `beats`."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._status: Any = None
        self._beat = threading.Semaphore(0)

    @property
    def status(self) -> EngineStatus:
        return self._status

    @status.setter
    def status(self, status: EngineStatus) -> None:
        self._status = status
        self._beat.release()

    def wait_for_beats(self, count: int) -> None:
        for _ in range(count):
            assert self._beat.acquire(timeout=20)

    def serve(self, tokenizer: Any, seats: int) -> None:
        pass

    def publish(self, items: Any, record: Any = None) -> None:
        self.items += items


class Running:
    def __init__(self, engine: Any) -> None:
        self.engine, self.link, self.orders = engine, FakeLink(), SimpleQueue[Any]()
        status = EngineStatus("w", 1, "loading", False, time.time(), settings={"policy": engine.config.policy})
        self._thread = threading.Thread(target=Worker(engine, self.link, self.orders, status).run)
        self._thread.start()

    def add(self, request_id: str, words: str, grammar: Any = None) -> None:
        prompt_ids = self.engine.tokenizer.encode_text(words)
        claim = Claim(request_id, 1, request_id)
        self.orders.put(Add(claim, prompt_ids, SamplingParams(), "u", (), 1, time.time(), grammar))

    def stop(self) -> None:
        self.orders.put(Stop())
        self._thread.join(20)
        assert not self._thread.is_alive()

    def published(self, request_id: str) -> list[Any]:
        return [item.event for item in self.link.items if item.claim.request_id == request_id]


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(step_loop, "WAIT_AT_ONCE", 0.005)
    loop = Running(FillingEngine(EngineConfig(policy="dynamic")))
    yield loop
    if loop._thread.is_alive():
        loop.stop()


def test_while_a_batch_fills_nothing_spins_and_the_heart_goes_on_beating(running: Running) -> None:
    running.add("r1", "a b")
    running.link.wait_for_beats(20)
    assert running.engine.steps == 1  # for the news of r1
    running.add("r2", "a b")
    while len(running.published("r2")) < 3:
        running.link.wait_for_beats(1)
    running.stop()
    assert [type(event).__name__ for event in running.published("r1")] == ["Delta", "Delta", "Finish"]
    assert running.engine.steps == 3


def test_a_cancel_is_heard_while_a_batch_fills(running: Running) -> None:
    running.add("r1", "a b")
    running.link.wait_for_beats(5)
    running.orders.put(Cancel("r1"))
    while not running.published("r1"):
        running.link.wait_for_beats(1)
    running.stop()
    assert [event.finish_reason for event in running.published("r1")] == ["cancelled"]


def test_the_policy_in_force_is_told(running: Running) -> None:
    running.link.wait_for_beats(1)
    assert running.link.status.settings["policy"] == "dynamic"
    running.engine.scheduler.policy = SimpleNamespace(name="static")
    running.add("r1", "a b")
    running.add("r2", "a b")
    while len(running.published("r2")) < 3:
        running.link.wait_for_beats(1)
    running.stop()
    assert running.link.status.settings["policy"] == "static"


def test_the_grammar_comes_with_the_request(running: Running) -> None:
    grammar = object()
    running.add("r1", "a", grammar)
    running.add("r2", "a")
    while len(running.published("r2")) < 2:
        running.link.wait_for_beats(1)
    running.stop()
    assert running.engine.grammars == [grammar, None]


def test_a_lost_claim_takes_only_its_own_request_along() -> None:
    engine, link = FakeEngine(), FakeLink()
    status = EngineStatus("w", 1, "ready", False, time.time(), settings={"policy": "continuous"})
    loop = Worker(engine, link, SimpleQueue[Any](), status)  # type: ignore[arg-type]
    words = engine.tokenizer.encode_text("a b")
    for request_id, token in (("r1", "first"), ("r2", "other"), ("r1", "second"), ("r2", "another")):
        loop._carry_out(Add(Claim(request_id, 1, token), words, SamplingParams(), "u", (), 1))
    loop._carry_out(Drop("another"))
    while engine.has_work:
        loop._step()
    loop._hand_over()
    assert {item.claim.token for item in link.items} == {"second"}
    assert [type(item.event).__name__ for item in link.items] == ["Delta", "Delta", "Finish"]


def test_the_end_of_a_request_that_is_refused_goes_on_in_its_log() -> None:
    engine, link = FakeEngine(), FakeLink()
    status = EngineStatus("w", 1, "ready", False, time.time(), settings={"policy": "continuous"})
    loop = Worker(engine, link, SimpleQueue[Any](), status)  # type: ignore[arg-type]
    loop._carry_out(Add(Claim("r1", 1, "first"), [0] * 101, SamplingParams(), "u", (5, 6, 7), 4))
    (event,) = [item.event for item in link.items]
    assert (event.seq, event.error_code, event.completion_tokens) == (4, "prompt_too_long", 3)


def test_a_request_that_is_cancelled_dropped_and_added_between_two_steps_begins_anew() -> None:
    engine, link = toy_engine(), FakeLink()
    status = EngineStatus("w", 1, "ready", False, time.time(), settings={"policy": "continuous"})
    loop = Worker(engine, link, SimpleQueue[Any](), status)  # type: ignore[arg-type]
    params = SamplingParams(max_tokens=5, seed=1, ignore_eos=True)
    loop._carry_out(Add(Claim("r1", 1, "first"), [5, 6], params, "u", (), 1))
    loop._step()
    for order in (Cancel("r1"), Drop("first"), Add(Claim("r1", 2, "second"), [5, 6], params, "u", (), 1)):
        loop._carry_out(order)
    while engine.has_work:
        loop._step()
    loop._hand_over()
    events = [item.event for item in link.items if item.claim.token == "second"]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert events[-1].finish_reason == "length"
    assert not loop._claims
