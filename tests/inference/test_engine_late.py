"""The engine where a device computes on its own: what comes out is what comes out of one that waits for each pass."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from support.carrying import Job, check_jobs, random_jobs, run_alone, run_jobs, tight_settings
from support.late import LateRunner, made_late
from support.toy import VOCAB, ToyModel, ToyTokenizer, toy_engine

from inference.answer import Answer
from inference.config import SamplingParams
from inference.engine import Engine
from inference.scheduling.outputs import StepOutput
from inference.scheduling.request import FinishReason

PHASES = ("schedule", "forward", "sample", "commit")
PARAMS = SamplingParams(max_tokens=10, temperature=0.0, ignore_eos=True)


def jobs_of(seed: int, count: int, longest: int = 60) -> tuple[random.Random, list[Job]]:
    """Some of them ask for logprobs, some repeat themselves, which is where drafts come from."""
    draw = random.Random(seed)
    jobs = random_jobs(draw, range(1, VOCAB), count, longest, stop=("qj", "dd", "é"))
    for job in jobs:
        job.params = replace(job.params, logprobs=draw.choice([None, None, 3]))
        job.prompt = (job.prompt * 4)[:longest] if draw.random() < 0.5 else job.prompt
    return draw, jobs


@pytest.mark.parametrize("drafts", [0, 4])
@pytest.mark.parametrize("policy", ["continuous", "static"])
def test_answers_are_those_of_a_request_alone(policy: str, drafts: int) -> None:
    """Arrivals and cancels at all times, a pool that is too small, stop strings."""
    preemptions = 0
    for seed in range(4):
        draw, jobs = jobs_of(seed, 14)
        make = partial(toy_engine, ToyModel(seed=seed, eos_bonus=-1.0))
        settings = tight_settings(draw, jobs, 4, 7) | {"policy": policy, "draft_tokens": drafts}
        engine = made_late(make(**settings))
        preemptions += run_jobs(engine, jobs)
        check_jobs(engine, jobs, run_alone(make, jobs))
    assert preemptions > 0, "the pool was not too small"


@pytest.mark.parametrize("every", [2, 3, 7])
def test_whoever_is_preempted_while_computed_is_computed_again(every: int) -> None:
    def preempt(engine: Engine, iteration: int) -> None:
        running = engine.scheduler.running
        if iteration % every == 0 and running:
            engine.scheduler.preempt(next(reversed(running.values())))

    _, jobs = jobs_of(every, 8)
    engine = made_late(toy_engine(kv_blocks=256, max_num_batched_tokens=256, draft_tokens=3))
    run_jobs(engine, jobs, preempt)
    check_jobs(engine, jobs, run_alone(toy_engine, jobs))


class Clock:
    """Ten milliseconds a forward pass, whoever computes it and whenever."""

    def __init__(self) -> None:
        self.passes = 0

    def perf_counter(self) -> float:
        return self.passes / 100

    def watch(self, engine: Engine) -> None:
        execute = engine._passes.runner.execute

        def counted(batch: Any) -> Any:
            self.passes += 1
            return execute(batch)

        engine._passes.runner.execute = counted  # type: ignore[method-assign]


def told(engine: Engine, jobs: list[Job], clock: Clock, users: int) -> list[StepOutput]:
    """What each iteration told, but for the time that it took and the wall clock."""
    clock.watch(engine)
    steps, call = [], 0
    while engine.has_work or call <= max(job.arrives for job in jobs):
        for number, job in enumerate(jobs):
            if job.arrives == call:
                engine.add_request(job.prompt, job.params, request_id=f"job-{number}", user=f"user {number % users}")
        step = engine.step()
        call += 1
        if step.record is not None:
            record = replace(step.record, started_at=0.0, **dict.fromkeys(PHASES, 0.0))
            finishes = [replace(f, started_at=0.0, first_token_at=0.0, finished_at=0.0) for f in step.finishes]
            steps.append(StepOutput(step.deltas, finishes, record))
    return steps


@pytest.mark.parametrize("drafts", [0, 4])
@pytest.mark.parametrize("policy", ["continuous", "static"])
def test_iteration_by_iteration_the_same_is_told(monkeypatch: pytest.MonkeyPatch, policy: str, drafts: int) -> None:
    """Deltas, ends, receipts, ledger: with limits of time, NaN, seats and blocks that are too few.

    Requests of several users come all at once here: whose turn it is depends on what each has had when one arrives, and
    who arrives while a pass is computed comes before its tokens are counted.
    """
    ends = set()
    for seed in range(8):
        draw, jobs = jobs_of(seed, 20)
        users = 1 + seed % 2 * 2
        for job in jobs:
            job.arrives = job.arrives if users == 1 else 0
        settings = tight_settings(draw, jobs, 4, 7) | {"policy": policy, "draft_tokens": drafts}
        limits = {"queue_timeout": 0.15, "run_timeout": 0.25, "total_timeout": 0.3, "max_running_per_user": 3}
        outputs = []
        for is_late in (False, True):
            clock = Clock()
            monkeypatch.setattr(
                "inference.step.time", SimpleNamespace(perf_counter=clock.perf_counter, time=lambda: 0.0)
            )
            model = ToyModel(seed=seed, eos_bonus=-1.0)
            model.breaks = lambda ids: len(ids) > 5 and sum(ids) % 97 == 0
            engine = toy_engine(model, **settings, **limits)
            outputs.append(told(made_late(engine) if is_late else engine, jobs, clock, users))
            engine.pool.check()
        assert outputs[0] == outputs[1]
        assert len(outputs[0]) > 10
        ends |= {(finish.finish_reason, finish.error_code) for step in outputs[0] for finish in step.finishes}
    reasons = {FinishReason.STOP, FinishReason.LENGTH, FinishReason.EXPIRED}
    assert ends == {*((reason, "") for reason in reasons), (FinishReason.ERROR, "numerical_error")}


def test_several_answers_to_one_prompt() -> None:
    params = SamplingParams(max_tokens=9, temperature=1.0, n=3, seed=5, logprobs=2)
    expected = toy_engine().generate([[5, 6, 7], [8]], params)
    given = made_late(toy_engine()).generate([[5, 6, 7], [8]], params)
    assert [strip(output) for output in given] == [strip(output) for output in expected]


def strip(output: Any) -> Any:
    return [{**asdict(one), "request_id": "", "receipt": {}, "others": []} for one in output.choices]


def test_a_cancel_while_its_token_is_computed_ends_it_before_that_token() -> None:
    engine = made_late(toy_engine())
    engine.add_request([5, 6], PARAMS, request_id="a")
    engine.add_request([7, 8], PARAMS, request_id="b")
    for _ in range(3):
        engine.step()  # tokens 1 and 2 were told, the third is computed
    assert engine.cancel("a")
    assert not engine.cancel("a")
    step = engine.step()
    assert [(f.request_id, f.finish_reason, f.completion_tokens) for f in step.finishes] == [("a", "cancelled", 2)]
    assert {delta.request_id for delta in step.deltas} == {"b"}
    assert step.record is not None
    assert [row.request_id for row in step.record.rows] == ["a", "b"], "both were computed"
    assert [(one.request_id, one.seat) for one in step.record.finished] == [("a", 0)]
    engine.add_request([5, 6], PARAMS, request_id="a")
    ids: dict[str, int] = {}
    while engine.has_work:
        for finish in engine.step().finishes:
            ids[finish.request_id] = finish.completion_tokens
    assert ids == {"a": 10, "b": 10}


def test_the_last_iteration_is_told_without_new_traffic() -> None:
    engine = made_late(toy_engine())
    engine.add_request([5, 6], replace(PARAMS, max_tokens=2))
    steps = []
    while engine.has_work:
        assert engine.seconds_to_next_step() == 0
        steps.append(engine.step())
    assert [len(step.finishes) for step in steps] == [0, 0, 1]
    assert [step.record and step.record.n for step in steps] == [None, 1, 2]
    assert engine.step() == StepOutput([], [], None)


class Spoilt(ToyTokenizer):
    """Has no piece for one of the ids."""

    def __init__(self, token_id: int) -> None:
        whole = super().__init__() or self.pieces

        class Pieces:
            byte_level, special_ids = True, whole.special_ids

            def __getitem__(self, asked: int) -> bytes:
                if asked == token_id:
                    raise KeyError(asked)
                return whole[asked]

        self.pieces = Pieces()  # type: ignore[assignment]


def test_text_that_can_not_be_made_ends_its_request_though_it_is_computed_already() -> None:
    prompts = {"a": [5, 6], "bad": [7, 8, 9], "c": [11] * 9}
    expected = dict(zip(prompts, toy_engine().generate(list(prompts.values()), PARAMS), strict=True))
    others = expected["a"].token_ids + expected["c"].token_ids
    place = next(place for place, i in enumerate(expected["bad"].token_ids) if i not in others)
    engine = made_late(toy_engine())
    engine.tokenizer = Spoilt(expected["bad"].token_ids[place])
    for name, prompt in prompts.items():
        engine.add_request(prompt, PARAMS, request_id=name)
    texts, ends = dict.fromkeys(prompts, ""), {}
    while engine.has_work:
        step = engine.step()
        engine.pool.check()
        for delta in step.deltas:
            texts[delta.request_id] += delta.text
        ends.update({finish.request_id: finish for finish in step.finishes})
    assert {name: end.error_code for name, end in ends.items()} == {"a": "", "bad": "internal", "c": ""}
    assert ends["bad"].completion_tokens == place + 1
    assert all(texts[name] == expected[name].text for name in ("a", "c"))
    assert engine.pool.held_count == 0


def test_text_that_can_not_be_made_of_one_that_expires_at_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text is looked at while the next iteration is planned, because another one ends there."""
    engine = made_late(toy_engine())
    (expected,) = toy_engine().generate([[7, 8, 9]], PARAMS)
    engine.tokenizer = Spoilt(expected.token_ids[0])
    for name, prompt in (("a", [5, 6]), ("b", [11]), ("bad", [7, 8, 9])):
        engine.add_request(prompt, PARAMS, request_id=name)
    running = engine.scheduler.running
    late = [[], [(running, name) for name in ("b", "bad")]]
    monkeypatch.setattr(
        engine.scheduler.deadlines,
        "expired",
        lambda now: [(of[name], "too late") for of, name in late.pop(0)] if late else [],
    )
    ends = {}
    while engine.has_work:
        ends.update({finish.request_id: finish.finish_reason for finish in engine.step().finishes})
    assert ends == {"a": FinishReason.LENGTH, "b": FinishReason.EXPIRED, "bad": FinishReason.EXPIRED}
    assert engine.pool.held_count == 0


def order_of(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens when, from now on."""
    events: list[str] = []

    def noted(word: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            events.append(word)
            return call(*args, **kwargs)

        return wrapper

    monkeypatch.setattr(engine._passes.runner, "execute", noted("launch", engine._passes.runner.execute))
    monkeypatch.setattr(Answer, "tell", noted("tell", Answer.tell))
    monkeypatch.setattr(Answer, "take", noted("take", Answer.take))
    return events


def test_text_is_made_while_the_device_is_at_the_next_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = made_late(toy_engine())
    events = order_of(engine, monkeypatch)
    engine.generate([[5, 6]], replace(PARAMS, max_tokens=3))
    assert events == ["launch", "take", "launch", "tell", "take", "launch", "tell", "take", "tell"]


def test_without_such_a_device_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = toy_engine()
    events = order_of(engine, monkeypatch)
    engine.generate([[5, 6]], replace(PARAMS, max_tokens=3))
    assert events == ["launch", "take", "tell"] * 3


def test_a_record_has_the_devices_time_for_its_pass() -> None:
    engine = made_late(toy_engine())
    engine.generate([[5, 6]], PARAMS)
    assert isinstance(engine._passes.runner, LateRunner)
    for record in engine.ledger.records:
        assert all(getattr(record, phase) >= 0 for phase in PHASES)
        assert record.forward <= 2.0 or record.sample == 0, "waiting is no part of sampling"
