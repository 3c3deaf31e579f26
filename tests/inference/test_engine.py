"""The engine's promises, one by one, with the toy model."""

from __future__ import annotations

import pytest
from support.toy import EOS, WIDTH, ToyModel, ToyTokenizer, alone, toy_engine

from inference import Engine, EngineConfig, SamplingParams
from inference.config import ParameterError
from inference.execution.sampler import Sampler
from inference.scheduling.outputs import RequestFinish, TokenDelta
from inference.scheduling.request import RequestRefused

LONG = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def drain(engine: Engine) -> tuple[list[TokenDelta], dict[str, RequestFinish]]:
    deltas: list[TokenDelta] = []
    ends: dict[str, RequestFinish] = {}
    while engine.has_work:
        output = engine.step()
        engine.pool.check()
        deltas += output.deltas
        ends |= {end.request_id: end for end in output.finishes}
    assert engine.pool.free_count == engine.pool.num_blocks
    return deltas, ends


def test_generate_keeps_the_order_and_takes_text_and_ids() -> None:
    engine = toy_engine()
    prompts = ["abc", "a longer prompt that comes second", "z"]
    outputs = engine.generate(prompts, LONG)
    assert [o.token_ids for o in outputs] == [
        alone(engine.tokenizer.encode_text(prompt), LONG).token_ids for prompt in prompts
    ]
    by_ids = engine.generate([engine.tokenizer.encode_text(p) for p in prompts], LONG)
    assert [o.text for o in by_ids] == [o.text for o in outputs]


def test_generate_with_params_of_each() -> None:
    outputs = toy_engine().generate([PROMPT, PROMPT], [SamplingParams(max_tokens=n, temperature=0.0) for n in (2, 5)])
    assert [len(o.token_ids) for o in outputs] == [2, 5]
    with pytest.raises(ParameterError, match="2 prompts and 1 parameters"):
        toy_engine().generate([PROMPT, PROMPT], [LONG])


def test_a_refused_prompt_leaves_nothing_behind() -> None:
    engine = toy_engine(kv_blocks=4)
    with pytest.raises(RequestRefused):
        engine.generate([PROMPT, [1] * 600], LONG)
    assert not engine.has_work
    assert engine.pool.free_count == 4


def test_fifty_prompts_that_are_too_long_leave_the_cache_empty() -> None:
    engine = toy_engine(kv_blocks=10)
    for _ in range(50):
        with pytest.raises(RequestRefused, match="10"):
            engine.add_request([1] * 200, LONG)
    assert not engine.has_work
    assert engine.pool.free_count == 10


@pytest.mark.parametrize("token_id", [-1, WIDTH, 2**31, True, 1.5, "a"])
def test_ids_outside_the_vocabulary_are_refused(token_id: object) -> None:
    engine = toy_engine()
    with pytest.raises(RequestRefused, match="token id|whole numbers") as refusal:
        engine.add_request([1, token_id], LONG)  # type: ignore[list-item]
    assert refusal.value.code == "bad_params"
    with pytest.raises(RequestRefused, match="stop_token_ids"):
        engine.add_request([1], SamplingParams(stop_token_ids=(WIDTH,)))


def test_the_same_id_twice_is_refused() -> None:
    engine = toy_engine()
    engine.add_request(PROMPT, LONG, request_id="a")
    with pytest.raises(ParameterError, match="running already"):
        engine.add_request(PROMPT, LONG, request_id="a")


def test_cancel_at_the_next_iteration_keeps_what_there_is() -> None:
    engine = toy_engine()
    request_id = engine.add_request(PROMPT, LONG)
    neighbour = engine.add_request(PROMPT[::-1], LONG)
    made = sum(len(d.token_ids) for _ in range(5) for d in engine.step().deltas if d.request_id == request_id)
    assert engine.cancel(request_id)
    assert not engine.cancel(request_id)
    assert not engine.cancel("unknown")
    output = engine.step()
    [end] = [end for end in output.finishes if end.request_id == request_id]
    assert end.finish_reason == "cancelled"
    assert made <= end.completion_tokens <= 5
    assert output.record is not None
    assert [row.request_id for row in output.record.rows] == [neighbour]
    deltas, _ = drain(engine)
    assert all(d.request_id == neighbour for d in deltas)


def test_cancelled_in_the_middle_of_a_long_prompt() -> None:
    model = ToyModel(max_model_len=1 << 14)
    engine = toy_engine(model, kv_blocks=600, max_num_batched_tokens=256)
    request_id = engine.add_request([1] * 8000, LONG)
    engine.step()
    engine.step()
    engine.cancel(request_id)
    drain(engine)
    assert model.forward_rows == [256, 256]


def test_cancelled_while_waiting_it_never_runs() -> None:
    engine = toy_engine(max_num_seqs=1)
    first = engine.add_request(PROMPT, LONG)
    second = engine.add_request(PROMPT, LONG)
    engine.step()
    engine.cancel(second)
    deltas, ends = drain(engine)
    assert {d.request_id for d in deltas} == {first}
    assert ends[second].completion_tokens == 0
    assert ends[second].started_at == 0.0
    assert ends[first].completion_tokens == 40


def test_an_idle_step_does_nothing() -> None:
    output = toy_engine().step()
    assert (output.deltas, output.finishes, output.record) == ([], [], None)


@pytest.mark.parametrize("tokens_before", [0, 1, 5, 39, 40])
def test_resumed_it_goes_on_where_it_was(tokens_before: int) -> None:
    whole = toy_engine()
    whole.add_request(PROMPT, LONG, request_id="a")
    all_deltas, all_ends = drain(whole)
    ids = [i for d in all_deltas for i in d.token_ids] + all_ends["a"].token_ids
    engine = toy_engine()
    engine.add_request(PROMPT, LONG, request_id="a", output_ids=ids[:tokens_before])
    deltas, ends = drain(engine)
    assert deltas == all_deltas[len(all_deltas) - len(deltas) :]
    assert (ends["a"].seq, ends["a"].finish_reason) == (all_ends["a"].seq, "length")
    assert ends["a"].completion_tokens == 40


def test_a_stop_string_is_never_shown() -> None:
    text = alone(PROMPT, LONG).text
    stop = text[10:14]
    output = alone(PROMPT, SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True, stop=(stop,)))
    assert output.text == text[: text.index(stop)]
    assert output.finish_reason == "stop"
    assert len(output.token_ids) < 40


def test_eos_ends_an_answer_unless_ignored_or_too_early() -> None:
    params = {"max_tokens": 400, "temperature": 0.0}
    ended = alone([5], SamplingParams(**params))
    assert ended.finish_reason == "stop"
    assert ended.token_ids.index(EOS) == len(ended.token_ids) - 1
    ignored = alone([5], SamplingParams(**params, ignore_eos=True))
    assert (len(ignored.token_ids), ignored.finish_reason) == (400, "length")
    later = alone([5], SamplingParams(**params, min_tokens=len(ended.token_ids) + 3))
    assert len(later.token_ids) > len(ended.token_ids) + 2


def test_stop_token_ids() -> None:
    ids = alone(PROMPT, LONG).token_ids
    output = alone(PROMPT, SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True, stop_token_ids=(ids[7],)))
    assert output.token_ids == ids[: ids.index(ids[7]) + 1]
    assert output.finish_reason == "stop"


def test_a_row_of_nan_fails_alone() -> None:
    model = ToyModel()
    model.poisoned = {60}
    engine = toy_engine(model)
    sick = engine.add_request([60, 1], LONG)
    well = [engine.add_request([n, 2, 3], SamplingParams(max_tokens=4, temperature=0.0)) for n in range(1, 7)]
    _, ends = drain(engine)
    assert (ends[sick].finish_reason, ends[sick].error_code) == ("error", "numerical_error")
    assert ends[sick].error_message
    for n, request_id in enumerate(well, 1):
        expected = alone([n, 2, 3], SamplingParams(max_tokens=4, temperature=0.0))
        assert ends[request_id].finish_reason == expected.finish_reason


def test_sampling_that_raises_fails_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = Sampler.sample

    def fragile(self: Sampler, logits: object, rows: list) -> list[int]:
        if any(row.seed == 13 for row in rows):
            raise RuntimeError("bad row")
        return sample(self, logits, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(Sampler, "sample", fragile)
    engine = toy_engine()
    sick = engine.add_request(PROMPT, SamplingParams(max_tokens=4, seed=13))
    well = engine.add_request(PROMPT, SamplingParams(max_tokens=4, seed=14, ignore_eos=True))
    _, ends = drain(engine)
    assert (ends[sick].finish_reason, ends[sick].error_code) == ("error", "internal")
    assert (ends[well].finish_reason, ends[well].completion_tokens) == ("length", 4)


def test_detokenising_that_raises_fails_one_request() -> None:
    class Broken(dict):
        byte_level = True
        special_ids = frozenset[int]()

        def __getitem__(self, token_id: int) -> bytes:
            if token_id == bad:
                raise KeyError(token_id)
            return b"a"

    bad = alone(PROMPT, LONG).token_ids[3]
    tokenizer = ToyTokenizer()
    tokenizer.pieces = Broken()  # type: ignore[assignment]
    engine = Engine.from_parts(EngineConfig(kv_blocks=64), ToyModel(), tokenizer)
    engine.add_request(PROMPT, LONG, request_id="a")
    _, ends = drain(engine)
    assert (ends["a"].finish_reason, ends["a"].error_code) == ("error", "internal")


def test_seeded_twenty_times_among_unseeded_neighbours() -> None:
    params = SamplingParams(max_tokens=12, temperature=1.0, seed=42, ignore_eos=True)
    engine = toy_engine()
    answers = set()
    for i in range(20):
        prompts = [[n + 1] * (i % 5 + 1) for n in range(i % 6)]
        outputs = engine.generate([*prompts, PROMPT], [SamplingParams(max_tokens=9)] * len(prompts) + [params])
        answers.add(tuple(outputs[-1].token_ids))
    assert len(answers) == 1


def test_the_record_of_an_iteration() -> None:
    engine = toy_engine(max_num_seqs=1, max_num_batched_tokens=6)
    engine.add_request(PROMPT, SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True), request_id="a")
    engine.add_request(PROMPT, LONG, request_id="b")
    records = [engine.step().record for _ in range(3)]
    assert [r.n for r in records if r] == [1, 2, 3]
    rows = [(row.kind, row.tokens, row.context, row.seat) for r in records if r for row in r.rows]
    assert rows == [("prefill", 6, 6, 0), ("prefill", 2, 8, 0), ("decode", 1, 9, 0)]
    first, _, last = records
    assert first is not None
    assert last is not None
    assert (first.budget.used, first.budget.limit, first.kv.used, first.seats) == (6, 6, 1, 1)
    assert [(w.request_id, w.reason) for w in first.waiting] == [("b", "no_seat")]
    assert first.waiting_total == 1
    assert [(f.request_id, f.reason, f.seat) for f in last.finished] == [("a", "length", 0)]
    assert min(first.schedule, first.forward, first.sample, first.commit) >= 0
    assert engine.ledger.newest(2) == records[1:]


def test_the_receipt_adds_up() -> None:
    engine = toy_engine(max_num_seqs=1)
    engine.add_request(PROMPT, LONG, request_id="a")
    engine.add_request(PROMPT, LONG, request_id="b")
    _, ends = drain(engine)
    for end in ends.values():
        receipt = dict(end.receipt)
        total = receipt.pop("total")
        assert set(receipt) == {"queue", "prefill", "decode"}
        assert sum(receipt.values()) == pytest.approx(total, rel=1e-9)
    assert ends["b"].receipt["queue"] > ends["a"].receipt["total"] / 2


def test_a_pool_from_memory() -> None:
    config = EngineConfig(kv_memory=64 * 1024, block_size=16, max_num_seqs=2)
    assert Engine.from_parts(config, ToyModel(), ToyTokenizer()).pool.num_blocks == 64 * 1024 // (8 * 16)
    roomy = EngineConfig(kv_memory=1 << 30, block_size=16, max_num_seqs=2)
    assert Engine.from_parts(roomy, ToyModel(1024), ToyTokenizer()).pool.num_blocks == 2 * 1024 // 16
    with pytest.raises(ParameterError, match="takes 2048"):
        Engine.from_parts(EngineConfig(kv_memory=1024, block_size=256), ToyModel(), ToyTokenizer())
