"""Pause, step, slowness and other limits, seen from outside the engine."""

from __future__ import annotations

import contextlib
import random
import time
from functools import partial
from math import inf
from typing import Any

import pytest
from support.carrying import check_jobs, random_jobs, run_alone, run_jobs, tight_settings
from support.late import made_late
from support.toy import VOCAB, ToyModel, toy_engine

from inference.config import POLICIES, ParameterError, SamplingParams
from inference.engine import Engine
from inference.scheduling.ledger import IterationRecord
from inference.scheduling.request import FinishReason

PARAMS = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)


def engine_with(*names: str, late: bool = False, **settings: Any) -> Engine:
    engine = toy_engine(**settings)
    engine = made_late(engine) if late else engine
    for name in names:
        engine.add_request([5, 6, 7], PARAMS, request_id=name)
    return engine


def told(engine: Engine) -> IterationRecord:
    record = engine.step().record
    assert record is not None
    return record


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_no_control_changes_an_answer(seed: int, late: bool) -> None:
    """Pauses, steps, limits and policies at all times, beside arrivals, cancels and preemptions."""
    draw = random.Random(seed)
    jobs = random_jobs(draw, range(1, VOCAB), 14, 60, stop=("qj", "dd", "é"))
    make = partial(toy_engine, ToyModel(seed=seed, eos_bonus=-1.0))
    engine = make(**tight_settings(draw, jobs, 4, draw.choice([None, 5])) | {"draft_tokens": draw.choice([0, 4])})
    engine = made_late(engine) if late else engine
    largest = max(engine.pool.blocks_for(len(job.prompt) + job.params.max_tokens - 1) for job in jobs)
    done = set()

    def meddle(engine: Engine, iteration: int) -> None:
        action, values = any_control(draw, engine, largest)
        if iteration % 9 == 0:
            action, values = "resume", {}
        with contextlib.suppress(ParameterError):
            engine.controls.carry_out(action, values)
            done.add(action)

    run_jobs(engine, jobs, meddle)
    engine.controls.set_limits(**engine.controls.most.to_mapping())
    check_jobs(engine, jobs, run_alone(make, jobs))
    assert done == {"pause", "resume", "step", "policy", "set"}
    for job in jobs:
        assert job.finish is not None
        receipt = job.finish.receipt
        parts = sum(ms for name, ms in receipt.items() if name not in ("total", "details"))
        assert parts == pytest.approx(receipt["total"], rel=0.01, abs=0.01)


def any_control(draw: random.Random, engine: Engine, least_blocks: int) -> tuple[str, dict[str, Any]]:
    most = engine.controls.most
    seats, budget = draw.randint(1, most.max_num_seqs), draw.randint(1, most.max_num_batched_tokens)
    blocks = draw.randint(least_blocks, most.kv_blocks)
    return draw.choice(
        [
            ("pause", {}),
            ("resume", {}),
            ("step", {}),
            ("policy", {"policy": draw.choice(POLICIES)}),
            ("set", {"max_num_seqs": seats, "max_num_batched_tokens": max(seats, budget), "kv_blocks": blocks}),
        ]
    )


def test_a_paused_engine_computes_nothing_and_says_why_each_one_waits() -> None:
    engine = engine_with("a", "b", "c", max_num_seqs=2)
    told(engine)
    seats = {r.request_id: (r.seat, list(r.block_table)) for r in engine.scheduler.running.values()}
    engine.controls.pause()
    assert [(w.request_id, w.reason) for w in told(engine).waiting] == [("c", "paused")]
    engine.add_request([9, 8], PARAMS, request_id="d")
    record = told(engine)
    assert record.rows == ()
    assert [(w.request_id, w.reason, w.detail) for w in record.waiting] == [
        ("c", "paused", "the engine is paused; 0 ahead"),
        ("d", "paused", "the engine is paused; 1 ahead"),
    ]
    assert (engine.has_work, engine.seconds_to_next_step()) == (True, inf)
    assert engine.step().record is None, "there is nothing new"
    assert seats == {r.request_id: (r.seat, list(r.block_table)) for r in engine.scheduler.running.values()}
    engine.controls.resume()
    assert engine.seconds_to_next_step() == 0
    assert [row.request_id for row in told(engine).rows] == ["a", "b"]


def test_who_waits_for_a_batch_to_fill_is_told_of_a_pause_and_of_its_end() -> None:
    engine = engine_with("a", policy="dynamic", batch_delay=30.0)
    reasons = []
    for action in (None, engine.controls.pause, engine.controls.resume, engine.controls.pause):
        if action is not None:
            action()
        reasons.append(told(engine).waiting[0].reason)
        assert engine.step().record is None
    assert reasons == ["policy", "paused", "policy", "paused"]


def test_one_iteration_a_step() -> None:
    engine = engine_with("a")
    engine.controls.pause()
    engine.controls.step()
    engine.controls.step()
    assert engine.seconds_to_next_step() == 0
    assert [bool(told(engine).rows) for _ in range(2)] == [True, True]
    assert engine.seconds_to_next_step() == inf
    assert engine.step().record is None
    engine.cancel("a")
    engine.controls.step()
    assert [f.finish_reason for f in engine.step().finishes] == ["cancelled"]
    engine.controls.step()
    engine.add_request([5], PARAMS, request_id="b")
    assert engine.seconds_to_next_step() == inf, "a step with nobody there is no step for whoever comes"


def test_steps_that_were_too_many_are_forgotten() -> None:
    engine = engine_with()
    engine.add_request([5, 6], SamplingParams(max_tokens=1), request_id="short")
    engine.controls.pause()
    for _ in range(3):
        engine.controls.step()
    assert [f.request_id for f in engine.step().finishes] == ["short"]
    engine.add_request([5], PARAMS, request_id="next")
    assert told(engine).rows == ()


def test_a_step_waits_until_a_batch_has_filled() -> None:
    engine = engine_with("a", policy="dynamic", batch_size=2, batch_delay=60.0)
    engine.controls.pause()
    engine.controls.step()
    assert told(engine).rows == ()
    assert 0 < engine.seconds_to_next_step() <= 60
    engine.add_request([5], PARAMS, request_id="b")
    assert len(told(engine).rows) == 2
    assert engine.seconds_to_next_step() == inf


def test_a_step_needs_a_pause() -> None:
    engine = engine_with("a")
    with pytest.raises(ParameterError, match="the engine is not paused"):
        engine.controls.step()


def ends_at_once(engine: Engine) -> list[tuple[str, str]]:
    """What ends as long as a step has something to do."""
    ends = []
    while engine.seconds_to_next_step() == 0:
        ends += [(f.request_id, f.finish_reason) for f in engine.step().finishes]
    return ends


@pytest.mark.parametrize("late", [False, True])
def test_while_paused_cancels_and_deadlines_are_heeded(late: bool) -> None:
    engine = engine_with("a", "b", "c", late=late, max_num_seqs=2, queue_timeout=0.3)
    engine.step()
    engine.controls.pause()
    assert ends_at_once(engine) == []
    engine.cancel("a")
    assert ends_at_once(engine) == [("a", FinishReason.CANCELLED)]
    assert engine.scheduler.seats.free_count == 1
    assert 0 < engine.seconds_to_next_step() < inf
    time.sleep(0.3)
    assert ends_at_once(engine) == [("c", FinishReason.EXPIRED)]
    assert list(engine.scheduler.running) == ["b"]
    engine.pool.check()


def test_a_device_that_computes_on_its_own_lands_what_is_under_way() -> None:
    engine = engine_with("a", late=True)
    engine.step()
    engine.controls.pause()
    assert engine.seconds_to_next_step() == 0
    assert told(engine).rows
    assert engine.seconds_to_next_step() == inf
    engine.controls.step()
    assert engine.step().record is None, "launched"
    assert told(engine).rows
    assert engine.seconds_to_next_step() == inf


def test_slow_waits_between_iterations_and_obeys_at_once() -> None:
    engine = engine_with("a", "b")
    engine.controls.slow(60_000)
    assert len(told(engine).rows) == 2
    assert 50 < engine.seconds_to_next_step() <= 60
    engine.add_request([9, 8], PARAMS, request_id="c")
    assert engine.step().record is None, "the next iteration will tell"
    engine.cancel("a")
    step = engine.step()
    assert [f.request_id for f in step.finishes] == ["a"]
    assert step.record is not None
    assert step.record.rows == ()
    assert step.record.waiting[0].detail == "the engine runs slowly, an iteration every 60000 ms; 0 ahead"
    engine.controls.set_limits(max_num_seqs=1)
    assert told(engine).preempted == ("b",)
    engine.controls.set_limits(max_num_seqs=8)
    engine.controls.slow(0)
    assert {row.request_id for row in told(engine).rows} == {"b", "c"}


@pytest.mark.parametrize("late", [False, True])
def test_records_and_settings_tell_what_is_in_force(late: bool) -> None:
    engine = engine_with(*"abcdef", late=late, max_num_seqs=4, max_num_batched_tokens=32)
    engine.step()
    engine.step()
    engine.controls.set_limits(max_num_seqs=2, max_num_batched_tokens=8, kv_blocks=12)
    records = [record for _ in range(3) if (record := engine.step().record) is not None]
    if late:
        before, *records = records
        assert (before.seats, before.budget.limit, len(before.rows)) == (4, 32, 4), "it was planned before"
    assert [(r.seats, r.budget.limit, r.kv.total) for r in records] == [(2, 8, 12)] * len(records)
    assert records[0].preempted
    assert all(len(r.rows) <= 2 for r in records)
    assert all(r.kv.free + r.kv.cached + r.kv.used == 12 for r in records)
    expected = {"max_num_seqs": 2, "max_num_batched_tokens": 8, "kv_blocks": 12}
    assert engine.controls.settings == {"policy": "continuous", "next_policy": None, **expected}
    assert engine.controls.most.to_mapping() == {"max_num_seqs": 4, "max_num_batched_tokens": 32, "kv_blocks": 64}


def test_a_policy_takes_over_when_what_runs_has_ended_and_at_once_where_nothing_does() -> None:
    engine = engine_with("a")
    engine.step()
    engine.controls.set_policy("static")
    assert (engine.controls.settings["policy"], engine.controls.settings["next_policy"]) == ("continuous", "static")
    while engine.has_work:
        engine.step()
    assert (engine.controls.settings["policy"], engine.controls.settings["next_policy"]) == ("static", None)
    engine.controls.set_policy("dynamic")
    assert (engine.controls.settings["policy"], engine.controls.settings["next_policy"]) == ("dynamic", None)


def test_what_is_refused_changes_nothing() -> None:
    engine = engine_with("a")
    engine.step()
    before = engine.controls.settings
    for values in ({"max_num_seqs": 9}, {"kv_blocks": 65}, {"max_num_seqs": 4, "max_num_batched_tokens": 3}):
        with pytest.raises(ParameterError):
            engine.controls.carry_out("set", values)
    with pytest.raises(ParameterError, match="kv_blocks would be 2, and a request that waits or runs here can need 3"):
        engine.controls.set_limits(max_num_seqs=2, kv_blocks=2)
    assert engine.controls.settings == before


def test_generate_does_not_wait_for_somebody_to_resume() -> None:
    engine = engine_with()
    engine.controls.pause()
    with pytest.raises(RuntimeError, match="not paused"):
        engine.generate([[5, 6]], PARAMS)
    engine.controls.resume()
    engine.controls.slow(1)
    [output] = engine.generate([[5, 6]], PARAMS)
    assert len(output.token_ids) == 8
