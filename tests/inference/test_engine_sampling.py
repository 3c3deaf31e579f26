"""Sampling parameters through the whole engine: rows don't touch each other, and preemption forgets nothing."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.toy import ToyModel, alone, toy_engine

from inference.config import EngineConfig, ParameterError, SamplingParams
from inference.engine import Engine
from inference.execution.models.loader import load_model
from inference.scheduling.outputs import Output
from inference.scheduling.request import FinishReason, RequestRefused
from inference.text.grammar import GrammarLimit, GrammarState
from inference.text.tokenizer import load_tokenizer

GREEDY = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}
PROMPTS = [[5, 6, 7], [5, 6, 7, 8, 9, 10, 11]]


def greedy(**more: Any) -> SamplingParams:
    return SamplingParams(**{**GREEDY, **more})


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_penalty_of_one_is_no_other_ones(order: tuple[int, int]) -> None:
    pair = [greedy(repetition_penalty=2.0), greedy()]
    expected = [alone([5, 6, 7], p).token_ids for p in pair]
    assert expected[0] != expected[1]
    outputs = toy_engine().generate([[5, 6, 7]] * 2, [pair[i] for i in order])
    assert [output.token_ids for output in outputs] == [expected[i] for i in order]


def by_hand(prompt: list[int], p: SamplingParams) -> list[int]:
    """Greedy with penalties, written down once more over the toy model's own logits."""
    model = ToyModel()
    ids: list[int] = []
    for _ in range(p.max_tokens):
        logits = logits_of(model, prompt + ids).double()
        for token_id in set(prompt + ids):
            value = logits[token_id]
            logits[token_id] = value / p.repetition_penalty if value > 0 else value * p.repetition_penalty
        for token_id in set(ids):
            logits[token_id] -= p.presence_penalty + p.frequency_penalty * ids.count(token_id)
        ids.append(int(logits.argmax()))
    return ids


def logits_of(model: ToyModel, ids: list[int]) -> torch.Tensor:
    engine = toy_engine(model, kv_blocks=64, max_num_batched_tokens=256, prefix_caching=False)
    seen: list[torch.Tensor] = []
    forward = model.forward
    model.forward = lambda batch, cache: seen.append(forward(batch, cache)) or seen[-1]  # type: ignore[method-assign]
    engine.generate([ids], SamplingParams(max_tokens=1))
    model.forward = forward  # type: ignore[method-assign]
    return seen[-1][0]


PENALTIES: list[dict[str, float]] = [
    {"repetition_penalty": 1.4},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.7},
    {"repetition_penalty": 1.3, "presence_penalty": -0.8, "frequency_penalty": 1.1},
]


@pytest.mark.parametrize("penalties", PENALTIES, ids=lambda p: "+".join(p))
@pytest.mark.parametrize("preempted_after", [None, 1, 5])
def test_penalties_count_what_they_should_at_every_step(
    penalties: dict[str, float], preempted_after: int | None
) -> None:
    p = greedy(**penalties, max_tokens=20)
    engine = toy_engine()
    for i, prompt in enumerate(PROMPTS):
        engine.add_request(prompt, p, request_id=str(i))
    ids: dict[str, list[int]] = {"0": [], "1": []}
    for step in itertools.count():
        if step == preempted_after:
            engine.scheduler.preempt(next(reversed(engine.scheduler.running.values())))
        output = engine.step()
        for event in (*output.deltas, *output.finishes):
            ids[event.request_id] += event.token_ids
        if not engine.has_work:
            break
    assert list(ids.values()) == [by_hand(prompt, p) for prompt in PROMPTS]


def test_penalties_go_on_where_a_request_is_taken_up() -> None:
    p = greedy(repetition_penalty=1.4, frequency_penalty=0.9, max_tokens=20)
    whole = alone(PROMPTS[0], p).token_ids
    engine = toy_engine()
    engine.add_request(PROMPTS[0], p, request_id="r", output_ids=whole[:7])
    rest = []
    while engine.has_work:
        step = engine.step()
        rest += [i for event in (*step.deltas, *step.finishes) for i in event.token_ids]
    assert rest[-13:] == whole[7:]


def test_a_bias_forbids_and_forces() -> None:
    engine = toy_engine()
    plain, forbidden, forced = engine.generate(
        [[5, 6, 7]] * 3,
        [greedy(), greedy(logit_bias={alone([5, 6, 7], greedy()).token_ids[0]: -100}), greedy(logit_bias={"9": 100})],
    )
    assert plain.token_ids[0] not in forbidden.token_ids
    assert forced.token_ids == [9] * 12


def test_n_answers_are_n_requests_of_their_own() -> None:
    p = SamplingParams(max_tokens=8, temperature=1.5, seed=11, n=4, ignore_eos=True)
    (family,) = toy_engine().generate([[5, 6, 7]], p)
    assert family.choices[0] is family
    assert len({tuple(choice.token_ids) for choice in family.choices}) == 4
    expected = [alone([5, 6, 7], sibling).token_ids for sibling in p.siblings()]
    assert [choice.token_ids for choice in family.choices] == expected
    (one,) = toy_engine().generate([[5, 6, 7]], SamplingParams(max_tokens=8, temperature=1.5, seed=11, ignore_eos=True))
    assert (one.token_ids, one.choices) == (family.token_ids, [one])
    with pytest.raises(ParameterError, match=r"n is 4; add each of params.siblings\(\), or use generate\(\)"):
        toy_engine().add_request([5], p)


def test_logprobs_come_with_their_tokens() -> None:
    p = SamplingParams(max_tokens=10, temperature=1.5, seed=4, logprobs=3, ignore_eos=True, stop="xyz")
    engine = toy_engine()
    engine.add_request([5, 6, 7], p, request_id="asks")
    engine.add_request([5, 6, 8], SamplingParams(max_tokens=10, seed=4, ignore_eos=True), request_id="does not")
    seen = []
    while engine.has_work:
        step = engine.step()
        for event in (*step.deltas, *step.finishes):
            if event.request_id == "does not":
                assert event.logprobs is None
            else:
                assert [entry.token_id for entry in event.logprobs] == event.token_ids
                seen += event.logprobs
    assert len(seen) == 10
    model, ids = ToyModel(), [5, 6, 7]
    for entry in seen:
        expected = logits_of(model, ids).log_softmax(0)
        assert entry.logprob == pytest.approx(float(expected[entry.token_id]), abs=1e-4)
        best = expected.topk(3)
        assert [i for i, _ in entry.top] == best.indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)
        ids.append(entry.token_id)
    (output,) = toy_engine().generate([[5, 6, 7]], p)
    assert output.logprobs == seen


@pytest.mark.parametrize("token_id", [48, 2**31 - 1])
@pytest.mark.parametrize("where", ["prompt", "stop_token_ids", "logit_bias"])
def test_ids_that_the_model_has_not_are_refused(token_id: int, where: str) -> None:
    engine = toy_engine()
    engine.add_request([5, 6, 7], greedy(), request_id="neighbour")
    given: dict[str, Any] = {
        "stop_token_ids": {"stop_token_ids": [token_id]},
        "logit_bias": {"logit_bias": {token_id: 1}},
    }
    with pytest.raises(RequestRefused, match=rf"{token_id}; this model's are 0 to 47") as refusal:
        engine.add_request([5, token_id] if where == "prompt" else [5], greedy(**given.get(where, {})))
    assert refusal.value.code == "bad_params"
    ids = []
    while engine.has_work:
        ids += [i for delta in engine.step().deltas for i in delta.token_ids]
    assert ids == alone([5, 6, 7], greedy()).token_ids


def test_a_request_that_bars_every_token_fails_alone() -> None:
    engine = toy_engine()
    bad = greedy(min_tokens=3, max_tokens=3, ignore_eos=False, stop_token_ids=list(range(1, 48)))
    good, none = engine.generate([[5, 6, 7]] * 2, [greedy(), bad])
    assert good.token_ids == alone([5, 6, 7], greedy()).token_ids
    assert (none.finish_reason, none.error_code, none.token_ids) == (FinishReason.ERROR, "bad_params", [])
    assert none.error_message == "the parameters of this request allow no token here"


# Formats need a real tokenizer.

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def make() -> Callable[..., Engine]:
    loaded = load_model(EngineConfig(dtype="float32", device="cpu"))
    tokenizer = load_tokenizer(Path(loaded.tokenizer_folder))

    def make(**settings: Any) -> Engine:
        config = EngineConfig(**{"dtype": "float32", "kv_blocks": 64, "max_num_seqs": 4, **settings})
        return Engine.from_parts(config, loaded.model, tokenizer)

    return make


def chat(engine: Engine, text: str) -> list[int]:
    return engine.tokenizer.encode_chat([{"role": "user", "content": text}])


def formats() -> list[SamplingParams]:
    common = {"max_tokens": 60, "temperature": 0.8, "seed": 3}
    return [
        SamplingParams(**common, response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA}}),
        SamplingParams(**common, response_format={"type": "regex", "regex": "(yes|no), [a-z]{3,9}!"}, ignore_eos=True),
        SamplingParams(max_tokens=12, temperature=0.0),
    ]


def check_formats(outputs: list[Output]) -> None:
    person, word, _ = outputs
    assert person.finish_reason is word.finish_reason is FinishReason.STOP
    value = json.loads(person.text)
    assert set(value) == {"name", "age"}
    assert isinstance(value["age"], int)
    assert word.text.split(", ")[0] in ("yes", "no")


def test_answers_keep_their_format_whatever_the_schedule(make: Callable[..., Engine]) -> None:
    engine = make()
    prompts = [chat(engine, text) for text in ("A person as JSON.", "Do you like it? Say yes or no.", "Count to ten.")]
    outputs = engine.generate(prompts, formats())
    check_formats(outputs)
    again: dict[str, list[int]] = {}
    other = make(max_num_batched_tokens=16)
    for i, (prompt, p) in enumerate(zip(prompts, formats(), strict=True)):
        other.add_request(prompt, p, request_id=str(i))
    for step in itertools.count():
        if step % 5 == 4 and other.scheduler.running:
            other.scheduler.preempt(next(reversed(other.scheduler.running.values())))
        output = other.step()
        for event in (*output.deltas, *output.finishes):
            again[event.request_id] = again.get(event.request_id, []) + event.token_ids
        if not other.has_work:
            break
    assert [again[str(i)] for i in range(3)] == [o.token_ids for o in outputs]


def test_a_format_is_kept_where_a_request_is_taken_up(make: Callable[..., Engine]) -> None:
    engine = make()
    prompt, p = chat(engine, "A person as JSON."), formats()[0]
    (whole,) = engine.generate([prompt], p)
    engine.add_request(prompt, p, request_id="r", output_ids=whole.token_ids[:6])
    rest: list[int] = []
    while engine.has_work:
        step = engine.step()
        rest += [i for event in (*step.deltas, *step.finishes) for i in event.token_ids]
    assert rest == whole.token_ids[6:]


def test_a_format_that_raises_fails_alone(make: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make()
    prompt = chat(engine, "A person as JSON.")
    expected = engine.generate([prompt], formats()[2])[0].token_ids
    engine.add_request(prompt, formats()[0], request_id="bad")
    engine.add_request(prompt, formats()[2], request_id="good")
    engine.step()
    monkeypatch.setattr(engine._live["bad"].answer.grammar, "mask", lambda: 1 / 0)
    ends, ids = {}, []
    while engine.has_work:
        step = engine.step()
        ends.update({finish.request_id: (finish.finish_reason, finish.error_code) for finish in step.finishes})
        ids += [i for e in (*step.deltas, *step.finishes) if e.request_id == "good" for i in e.token_ids]
    assert ends == {"bad": (FinishReason.ERROR, "internal"), "good": (FinishReason.LENGTH, "")}
    assert ids == expected[-len(ids) :]


def test_an_answer_so_far_that_breaks_its_format_is_refused(make: Callable[..., Engine]) -> None:
    engine = make()
    ids = engine.tokenizer.encode_text("no JSON at all")
    with pytest.raises(RequestRefused, match=r"the answer so far, at token 1: token .* is not allowed") as refusal:
        engine.add_request([5], formats()[0], output_ids=ids)
    assert refusal.value.code == "bad_params"
    assert not engine.has_work


def test_a_format_that_is_wrong_is_refused_at_the_door(make: Callable[..., Engine]) -> None:
    with pytest.raises(RequestRefused, match="response_format") as refusal:
        make().add_request([5], SamplingParams(response_format={"type": "regex", "regex": "a("}))
    assert refusal.value.code == "bad_params"


@pytest.mark.parametrize("step", ["mask", "advance"])
def test_a_format_that_gets_too_complex_is_the_fault_of_who_asked(
    step: str, make: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def too_complex(*args: Any) -> None:
        raise GrammarLimit("response_format: it can't be followed any further")

    engine = make()
    engine.generate([[5]] * 3, formats())  # compiles them
    monkeypatch.setattr(GrammarState, step, too_complex)
    failed, *_, free = engine.generate([[5]] * 3, formats())
    assert (failed.finish_reason, failed.error_code) == (FinishReason.ERROR, "bad_params")
    assert failed.error_message == "response_format: it can't be followed any further"
    assert len(free.token_ids) == 12
    assert "Traceback" not in caplog.text


def test_a_stop_id_may_end_a_format_that_is_complete(make: Callable[..., Engine]) -> None:
    wanted = SamplingParams(
        max_tokens=20,
        temperature=0.0,
        stop_token_ids=(7,),
        logit_bias=((7, 100.0),),
        response_format={"type": "regex", "regex": "[a-z]{3,15}"},
    )
    (output,) = make().generate([[5]], wanted)
    assert (output.token_ids[-1], output.finish_reason) == (7, FinishReason.STOP)
    assert output.text.isalpha()
    assert 3 <= len(output.text) < 15, "at once when it is complete, and not before"
