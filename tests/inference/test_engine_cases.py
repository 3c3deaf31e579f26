"""Faults that users of other engines reported, each with a small pool or few seats."""

import gc
import sys
from collections.abc import Callable
from types import FrameType

import pytest
from support.toy import ToyModel, alone, toy_engine

from inference.config import ParameterError, SamplingParams
from inference.engine import Engine
from inference.scheduling.request import FinishReason, RequestRefused


def params(max_tokens: int, seed: int = 0) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=1.5, seed=seed, ignore_eos=True)


def preemptions(engine: Engine) -> int:
    return sum(len(record.preempted) for record in engine.ledger.records)


def test_a_cache_for_one_and_a_half_requests_and_eight_submitted() -> None:
    prompts = [[5 + i] * 12 for i in range(8)]  # 12 + 20 tokens are 8 blocks
    engine = toy_engine(kv_blocks=12)
    outputs = engine.generate(prompts, [params(20, i) for i in range(8)])
    assert [o.token_ids for o in outputs] == [alone(p, params(20, i)).token_ids for i, p in enumerate(prompts)]
    assert [o.finish_reason for o in outputs] == [FinishReason.LENGTH] * 8


def test_three_preemptions_and_more_change_no_text() -> None:
    prompts = [[5 + i, 6, 7] for i in range(6)]
    engine = toy_engine(kv_blocks=14)
    outputs = engine.generate(prompts, [params(24, i) for i in range(6)])
    assert preemptions(engine) >= 3
    for i, output in enumerate(outputs):
        expected = alone(prompts[i], params(24, i))
        assert (output.token_ids, output.text) == (expected.token_ids, expected.text)


def test_preempted_when_the_output_is_longer_than_the_prompt() -> None:
    engine = toy_engine(kv_blocks=9)
    for name in ("first", "second"):
        engine.add_request([5, 6], params(24), request_id=name)
    ids: dict[str, list[int]] = {"first": [], "second": []}
    lengths = []
    while engine.has_work:
        step = engine.step()
        lengths += [len(ids[name]) for name in step.record.preempted]
        for event in (*step.deltas, *step.finishes):
            ids[event.request_id] += event.token_ids
    assert lengths
    assert min(lengths) > 2
    assert ids["first"] == ids["second"] == alone([5, 6], params(24)).token_ids


def test_eleven_blocks_in_a_cache_of_ten_is_refused_at_once_and_the_next_runs() -> None:
    engine = toy_engine(kv_blocks=10)
    with pytest.raises(RequestRefused, match="can need 11 KV blocks, and there are 10") as refusal:
        engine.add_request([5] * 30, params(12))
    assert refusal.value.code == "prompt_too_long"
    assert engine.generate([[5] * 30], params(11))[0].token_ids == alone([5] * 30, params(11)).token_ids


def test_fifty_prompts_that_are_too_long_leave_the_cache_as_empty_as_before() -> None:
    engine = toy_engine(max_model_len=100)
    for _ in range(50):
        with pytest.raises(RequestRefused, match="103 together, and the model takes 100"):
            engine.add_request([5] * 100, params(3))
    assert not engine.has_work
    assert engine.pool.free_count == engine.pool.num_blocks


def test_a_request_cancelled_in_the_queue_never_runs() -> None:
    engine = toy_engine(max_num_seqs=1)
    engine.add_request([5, 6, 7], params(10, 3), request_id="a")
    steps = [engine.step()]
    engine.add_request([8, 9], params(10), request_id="b")
    steps.append(engine.step())
    assert [w.request_id for w in steps[-1].record.waiting] == ["b"]
    assert engine.cancel("b")
    while engine.has_work:
        steps.append(engine.step())
    finish = next(f for step in steps for f in step.finishes if f.request_id == "b")
    assert (finish.finish_reason, finish.completion_tokens, finish.started_at) == (FinishReason.CANCELLED, 0, 0)
    assert {row.request_id for step in steps for row in step.record.rows} == {"a"}
    text = "".join(d.text for step in steps for d in step.deltas)
    assert text == alone([5, 6, 7], params(10, 3)).text


def test_a_long_prompt_cancelled_after_its_second_chunk_is_computed_no_further() -> None:
    model = ToyModel(max_model_len=10_000)
    engine = toy_engine(model, kv_blocks=2500, max_num_batched_tokens=512, prefill_chunk=256)
    engine.add_request([5] * 8000, params(10), request_id="long")
    engine.step()
    engine.step()
    engine.cancel("long")
    while engine.has_work:
        engine.step()
    assert sum(len(batch.token_ids) for batch in model.batches) == 512
    assert (engine.pool.held_count, engine.pool.available_count) == (0, 2500)


def test_all_cancelled_at_once_is_told_without_new_traffic() -> None:
    engine = toy_engine(max_num_seqs=2)
    names = [engine.add_request([5, 6], params(50)) for _ in range(6)]
    engine.step()
    for name in names:
        assert engine.cancel(name)
    step = engine.step()
    assert {f.request_id for f in step.finishes} == set(names)
    assert (step.record.rows, step.record.waiting_total, step.record.kv.used) == ((), 0, 0)
    assert not engine.has_work


@pytest.mark.parametrize("budget", [8, 9])
def test_the_token_budget_is_never_exceeded(budget: int) -> None:
    model = ToyModel()
    engine = toy_engine(model, max_num_batched_tokens=budget)
    engine.generate([[5 + i] * (3 * i + 1) for i in range(12)], params(7))
    assert max(len(batch.token_ids) for batch in model.batches) == budget


def test_a_seeded_request_among_neighbours_twenty_times() -> None:
    engine = toy_engine()
    seeded = params(15, 77)
    for i in range(20):
        others = [[6 + i, j + 5] for j in range(3)]
        outputs = engine.generate([*others, [5, 6, 7]], [SamplingParams(max_tokens=9)] * 3 + [seeded])
        assert outputs[-1].token_ids == alone([5, 6, 7], seeded).token_ids


def test_a_step_costs_the_same_with_ten_thousand_waiting() -> None:
    """Calls are counted, not timed."""

    def calls(waiting: int) -> list[int]:
        engine = toy_engine(max_num_seqs=4)
        for _ in range(4 + waiting):
            engine.add_request([5, 6, 7], params(60))
        engine.step()
        return [_calls_of(engine.step) for _ in range(10)]

    assert calls(10_000) == calls(200)


def _calls_of(action: Callable[[], object]) -> int:
    count = 0

    def note(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()  # what others do when it runs is not the step's
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def test_a_short_prompt_passes_a_long_one_and_decodes_go_on() -> None:
    engine = toy_engine(ToyModel(max_model_len=10_000), kv_blocks=2500, max_num_batched_tokens=512)
    engine.add_request([5, 6, 7], params(60), request_id="a")
    engine.step()
    engine.add_request([5] * 4000, params(3), request_id="b")
    engine.step()
    engine.add_request([6, 7, 8], params(3), request_id="c")
    firsts: dict[str, int] = {}
    gaps, gap, iteration = [], 0, 0
    while engine.has_work and len(firsts) < 3:
        iteration += 1
        step = engine.step()
        for row in step.record.rows:  # a token of the prompt's last chunk is the first of the answer
            if row.context >= {"a": 3, "b": 4000, "c": 3}[row.request_id]:
                firsts.setdefault(row.request_id, iteration)
        gap = 0 if any(row.request_id == "a" for row in step.record.rows) else gap + 1
        gaps.append(gap)
    assert firsts["c"] == 1
    assert firsts["b"] > 10
    assert max(gaps) == 0, "the running one has a token in every iteration"
    assert max(row.tokens for record in engine.ledger.records for row in record.rows) == 256


@pytest.mark.parametrize("temperature", [float("nan"), float("inf"), -1, "0.7", True, None])
def test_a_bad_temperature_does_not_stir_the_neighbour(temperature: object) -> None:
    engine = toy_engine()
    engine.add_request([5, 6, 7], params(20, 4), request_id="neighbour")
    ids = []
    while engine.has_work:
        with pytest.raises(ParameterError, match="temperature"):
            engine.add_request([5], SamplingParams.from_mapping({"temperature": temperature}))
        step = engine.step()
        ids += [i for event in (*step.deltas, *step.finishes) for i in event.token_ids]
    assert ids == alone([5, 6, 7], params(20, 4)).token_ids


@pytest.mark.parametrize("temperature", [0, 1e-6])
def test_a_temperature_near_nothing_is_greedy(temperature: float) -> None:
    nearly, greedy = (SamplingParams(max_tokens=9, temperature=t, seed=3, ignore_eos=True) for t in (temperature, 0))
    assert alone([5, 6, 7], nearly).token_ids == alone([5, 6, 7], greedy).token_ids
