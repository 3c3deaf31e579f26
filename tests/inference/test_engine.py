"""Engine: what each call promises."""

import math
import time
from typing import Any

import pytest
import torch
from support.toy import EOS, VOCAB, ToyModel, ToyTokenizer, toy_engine

from inference.config import ParameterError, SamplingParams
from inference.engine import Engine
from inference.scheduling.blocks import PoolError
from inference.scheduling.outputs import RequestFinish, StepOutput
from inference.scheduling.receipt import PARTS
from inference.scheduling.request import FinishReason, RequestRefused

GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


def run(engine: Engine) -> list[StepOutput]:
    steps = []
    while engine.has_work:
        steps.append(engine.step())
        engine.pool.check()
    return steps


def finishes(steps: list[StepOutput]) -> dict[str, RequestFinish]:
    return {finish.request_id: finish for step in steps for finish in step.finishes}


def ids_of(steps: list[StepOutput], request_id: str) -> list[int]:
    ids = [i for step in steps for delta in step.deltas if delta.request_id == request_id for i in delta.token_ids]
    return ids + finishes(steps)[request_id].token_ids


def test_generate_gives_outputs_in_the_order_of_the_prompts() -> None:
    prompts = ["abc", "zy", "hello"]
    together = toy_engine().generate(prompts, GREEDY)
    alone = [toy_engine().generate([prompt], GREEDY)[0] for prompt in prompts]
    assert [o.token_ids for o in together] == [o.token_ids for o in alone]
    for prompt, output in zip(prompts, together, strict=True):
        assert output.text == ToyTokenizer().decode(output.token_ids)
        assert (output.prompt_tokens, output.finish_reason) == (len(prompt), FinishReason.LENGTH)
    assert len({tuple(o.token_ids) for o in together}) == 3


def test_generate_takes_ids_and_parameters_for_each() -> None:
    engine = toy_engine()
    outputs = engine.generate([[5, 6], [7]], [SamplingParams(max_tokens=n, ignore_eos=True) for n in (2, 5)])
    assert [len(o.token_ids) for o in outputs] == [2, 5]
    with pytest.raises(ParameterError, match="there are 1 prompts and 2 parameters"):
        engine.generate(["a"], [GREEDY, GREEDY])


def test_generate_of_nothing_is_nothing() -> None:
    assert toy_engine().generate([], GREEDY) == []


def test_generate_with_one_that_can_never_run_runs_none() -> None:
    engine = toy_engine(kv_blocks=4)
    with pytest.raises(RequestRefused):
        engine.generate(["ab", "c" * 100], GREEDY)
    assert not engine.has_work
    assert engine.pool.free_count == 4
    assert engine.step() == StepOutput([], [], None)


def test_generate_wants_the_engine_for_itself() -> None:
    engine = toy_engine()
    engine.add_request("abc", GREEDY)
    with pytest.raises(RuntimeError, match="requests under way"):
        engine.generate(["a"], GREEDY)


def test_generate_that_is_broken_off_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = toy_engine()
    with monkeypatch.context() as patch:
        patch.setattr(engine._passes.runner, "execute", lambda batch: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            engine.generate(["abc", "d"], GREEDY)
    assert (engine.has_work, engine.pool.held_count) == (False, 0)
    assert engine.generate(["abc"], GREEDY)[0].token_ids == toy_engine().generate(["abc"], GREEDY)[0].token_ids


def test_a_step_without_work_has_no_record() -> None:
    engine = toy_engine()
    assert not engine.has_work
    assert engine.step() == StepOutput([], [], None)
    assert len(engine.ledger.records) == 0


def test_one_delta_a_token_then_the_finish() -> None:
    engine = toy_engine()
    engine.add_request("abc", GREEDY, request_id="one")
    steps = run(engine)
    deltas = [delta for step in steps for delta in step.deltas]
    assert [d.seq for d in deltas] == list(range(1, len(deltas) + 1))
    finish = finishes(steps)["one"]
    assert (finish.seq, finish.completion_tokens, finish.prompt_tokens) == (len(deltas) + 1, 12, 3)
    assert ToyTokenizer().decode(ids_of(steps, "one")) == "".join(d.text for d in deltas)
    assert (finish.finish_reason, finish.error_code) == (FinishReason.LENGTH, "")


def test_eos_ends_an_answer_and_min_tokens_bars_it() -> None:
    engine = toy_engine(ToyModel(eos_bonus=9.0))
    short, long = engine.generate(
        ["abc"] * 2, [SamplingParams(max_tokens=30, seed=1), SamplingParams(max_tokens=30, seed=1, min_tokens=9)]
    )
    assert short.token_ids.index(EOS) == len(short.token_ids) - 1 < 8
    assert (short.finish_reason, long.finish_reason) == (FinishReason.STOP, FinishReason.STOP)
    assert EOS not in long.token_ids[:9]
    assert long.token_ids[-1] == EOS


def test_stop_ids_and_stop_strings() -> None:
    (whole,) = toy_engine().generate(["abc"], GREEDY)
    stop_id = whole.token_ids[4]
    (by_id,) = toy_engine().generate(
        ["abc"], SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True, stop_token_ids=[stop_id])
    )
    end = whole.token_ids.index(stop_id) + 1
    assert (by_id.token_ids, by_id.finish_reason) == (whole.token_ids[:end], FinishReason.STOP)
    stop = whole.text[3:6]
    (by_text,) = toy_engine().generate(
        ["abc"], SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True, stop=stop)
    )
    assert by_text.text == whole.text[: whole.text.index(stop)]
    assert by_text.finish_reason is FinishReason.STOP


def test_a_seed_decides_and_without_one_answers_differ() -> None:
    engine = toy_engine()
    seeded = SamplingParams(max_tokens=12, temperature=2.0, seed=5)
    unseeded = SamplingParams(max_tokens=12, temperature=2.0)
    outputs = engine.generate(["abc"] * 8, [seeded, unseeded] * 4)
    assert len({tuple(o.token_ids) for o in outputs[::2]}) == 1
    assert len({tuple(o.token_ids) for o in outputs[1::2]}) == 4


@pytest.mark.parametrize("wrong", [-1, VOCAB, 1 << 31, 1 << 80, True, 1.0, "a", None])
@pytest.mark.parametrize("where", ["prompt", "output"])
def test_ids_out_of_the_vocabulary_are_refused(wrong: Any, where: str) -> None:
    engine = toy_engine()
    ids = [5, wrong, 6]
    with pytest.raises(RequestRefused) as refusal:
        engine.add_request(ids) if where == "prompt" else engine.add_request("abc", output_ids=ids)
    assert refusal.value.code == "bad_params"
    assert not engine.has_work


def test_stop_ids_out_of_the_vocabulary_are_refused() -> None:
    with pytest.raises(RequestRefused, match="stop_token_ids holds token id 48; this model's are 0 to 47") as refusal:
        toy_engine().add_request("abc", SamplingParams(stop_token_ids=[VOCAB]))
    assert refusal.value.code == "bad_params"


def test_whole_numbers_of_other_types_are_ids() -> None:
    tensor = torch.tensor([5, 6, 7])
    engine = toy_engine()
    outputs = engine.generate([tensor.numpy(), tensor.tolist()], GREEDY)
    assert outputs[0].token_ids == outputs[1].token_ids


def test_an_empty_prompt_and_a_used_name_are_refused() -> None:
    engine = toy_engine()
    with pytest.raises(RequestRefused, match="the prompt is empty"):
        engine.add_request("")
    engine.add_request("abc", GREEDY, request_id="name")
    with pytest.raises(RequestRefused, match="waits or runs already") as refusal:
        engine.add_request("abc", GREEDY, request_id="name")
    assert refusal.value.code == "conflict"


def test_cancel_between_iterations() -> None:
    engine = toy_engine()
    (whole,) = toy_engine().generate(["abc"], GREEDY)
    engine.add_request("abc", GREEDY, request_id="one")
    steps = [engine.step() for _ in range(5)]
    assert engine.cancel("one")
    assert not engine.cancel("one")
    assert engine.pool.held_count == 0
    steps += run(engine)
    finish = finishes(steps)["one"]
    assert (finish.finish_reason, finish.completion_tokens) == (FinishReason.CANCELLED, 5)
    assert ids_of(steps, "one") == whole.token_ids[:5]
    assert [f.reason for f in steps[-1].record.finished] == ["cancelled"]
    assert (steps[-1].record.rows, steps[-1].record.kv.free, steps[-1].record.kv.cached) == ((), 63, 1)


def test_cancel_of_an_unknown_request_says_so() -> None:
    assert not toy_engine().cancel("nobody")


def test_a_request_goes_on_from_any_token() -> None:
    params = SamplingParams(max_tokens=14, temperature=1.5, seed=7, stop="xyz")
    engine = toy_engine()
    engine.add_request("abc", params, request_id="r")
    steps = run(engine)
    ids, end = ids_of(steps, "r"), finishes(steps)["r"]
    deltas = [delta for step in steps for delta in step.deltas]
    sent = 0
    for delta in deltas:
        sent += len(delta.token_ids)
        engine.add_request("abc", params, request_id="r", output_ids=ids[:sent])
        again = run(engine)
        assert [d for step in again for d in step.deltas] == deltas[delta.seq :]
        finish = finishes(again)["r"]
        assert (finish.seq, finish.token_ids, finish.finish_reason) == (end.seq, end.token_ids, end.finish_reason)
        assert finish.completion_tokens == len(ids)


def test_a_request_whose_end_was_not_told_ends_at_once() -> None:
    engine = toy_engine()
    (whole,) = engine.generate(["abc"], GREEDY)
    engine.add_request("abc", GREEDY, request_id="r", output_ids=whole.token_ids)
    assert engine.has_work
    step = engine.step()
    assert (step.record.rows, step.deltas) == ((), [])
    assert step.finishes[0].finish_reason is FinishReason.LENGTH
    assert step.finishes[0].receipt["queue"] == step.finishes[0].receipt["total"]
    assert not engine.has_work


def test_records_tell_the_iteration() -> None:
    engine = toy_engine(max_num_seqs=2, max_num_batched_tokens=8, prefill_chunk=8)
    engine.epoch = 17
    for name, prompt in zip("abc", (3, 12, 2), strict=True):
        engine.add_request([5] * prompt, SamplingParams(max_tokens=3, ignore_eos=True), request_id=name)
    records = [step.record for step in run(engine)]
    rows = [[(r.request_id, r.seat, r.kind, r.tokens, r.context, r.blocks) for r in one.rows] for one in records]
    assert rows[:3] == [
        [("a", 0, "prefill", 3, 3, 1), ("b", 1, "prefill", 5, 5, 2)],
        [("a", 0, "decode", 1, 4, 1), ("b", 1, "prefill", 7, 12, 3)],
        [("a", 0, "decode", 1, 5, 2), ("b", 1, "decode", 1, 13, 4)],
    ]
    assert rows[3] == [("b", 1, "decode", 1, 14, 4), ("c", 0, "prefill", 2, 2, 1)]
    assert [(w.request_id, w.reason, w.detail) for w in records[0].waiting] == [("c", "no_seat", "seats 2 of 2")]
    assert [one.waiting_total for one in records[:4]] == [1, 1, 1, 0]
    assert [(f.request_id, f.reason, f.seat) for f in records[2].finished] == [("a", "length", 0)]
    assert [one.n for one in records] == list(range(1, len(records) + 1))
    assert {(one.epoch, one.policy, one.seats) for one in records} == {(17, "continuous", 2)}
    assert [(one.budget.used, one.budget.limit) for one in records[:2]] == [(8, 8), (8, 8)]
    for one in records:
        assert one.kv.free + one.kv.cached + one.kv.used == one.kv.total == 64
        assert min(one.schedule, one.forward, one.sample, one.commit) > 0
    assert list(engine.ledger.records) == records


def test_a_prompt_of_one_token_is_a_prefill() -> None:
    engine = toy_engine()
    engine.add_request([5], GREEDY)
    assert [engine.step().record.rows[0].kind for _ in range(3)] == ["prefill", "decode", "decode"]


def test_the_receipt_adds_up() -> None:
    engine = toy_engine(max_num_seqs=1)
    before, clock = time.time(), time.perf_counter()
    for _ in range(3):
        engine.add_request("abc", GREEDY)
    engine.add_request("abc", GREEDY, request_id="leaves")
    steps = [engine.step()]
    engine.cancel("leaves")
    steps += run(engine)
    elapsed = (time.perf_counter() - clock) * 1000
    for finish in finishes(steps).values():
        receipt = finish.receipt
        assert math.isclose(sum(receipt[part] for part in PARTS), receipt["total"], abs_tol=1e-6)
        assert min(receipt[part] for part in PARTS) >= 0
        assert receipt["total"] <= elapsed + 0.01
        if finish.request_id == "leaves":
            assert (finish.started_at, finish.first_token_at, receipt["prefill"]) == (0, 0, 0)
        else:
            assert before <= finish.started_at <= finish.first_token_at <= finish.finished_at <= time.time()
    first, *others = (f.receipt["queue"] for f in finishes(steps).values() if f.request_id != "leaves")
    assert first < min(others)


def test_a_leaked_block_stops_the_engine() -> None:
    engine = toy_engine()
    engine.pool.allocate(1)
    with pytest.raises(PoolError, match="1 blocks are held, and no request is there"):
        engine.generate(["abc"], GREEDY)
