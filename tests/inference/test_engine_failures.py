"""A request that goes wrong fails alone; a broken device ends the engine."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.clock import at_once
from support.late import made_late
from support.toy import ToyModel, ToyTokenizer, toy_engine

from inference.config import SamplingParams
from inference.engine import Engine
from inference.execution.sampler import Sampler
from inference.scheduling.outputs import RequestFinish, TokenDelta
from inference.scheduling.request import FinishReason

PARAMS = SamplingParams(max_tokens=10, temperature=1.5, seed=3, ignore_eos=True)
BAD = [7, 8, 40]
PROMPTS = {"a": [5, 6], "bad": BAD, "c": [9, 10, 11]}

Answer = tuple[list[TokenDelta], RequestFinish]


def run_all(engine: Engine) -> dict[str, Answer]:
    """PROMPTS together, and then the pool is empty."""
    for name, prompt in PROMPTS.items():
        engine.add_request(prompt, PARAMS, request_id=name)
    deltas: dict[str, list[TokenDelta]] = {name: [] for name in PROMPTS}
    ends: dict[str, RequestFinish] = {}
    while engine.has_work:
        step = engine.step()
        engine.pool.check()
        for delta in step.deltas:
            deltas[delta.request_id].append(delta)
        ends.update({finish.request_id: finish for finish in step.finishes})
    assert engine.pool.available_count == engine.pool.num_blocks
    return {name: (deltas[name], ends[name]) for name in PROMPTS}


def expect_only_bad_fails(got: dict[str, Answer], code: str, message: str) -> Answer:
    expected = run_all(toy_engine())
    for name in ("a", "c"):
        assert got[name][0] == expected[name][0]
        assert got[name][1].finish_reason is FinishReason.LENGTH
    deltas, finish = got["bad"]
    assert (finish.finish_reason, finish.error_code, finish.error_message) == (FinishReason.ERROR, code, message)
    assert finish.seq == len(deltas) + 1
    assert deltas == expected["bad"][0][: len(deltas)]
    return got["bad"]


@pytest.mark.parametrize("tokens", [0, 4])
def test_logits_that_are_no_numbers(tokens: int) -> None:
    model = ToyModel()
    model.breaks = lambda ids: ids[:3] == BAD and len(ids) == 3 + tokens
    message = "the model computed something that is not a number for this request"
    _, finish = expect_only_bad_fails(run_all(toy_engine(model)), "numerical_error", message)
    assert finish.completion_tokens == tokens


def test_blocks_of_a_numerical_error_are_zeroed() -> None:
    model = ToyModel()
    model.breaks = lambda ids: ids[:3] == BAD and len(ids) == 6
    engine = toy_engine(model)
    engine.add_request(BAD, PARAMS, request_id="bad")
    blocks: list[int] = []
    while engine.has_work:
        blocks = [*engine.scheduler.running["bad"].block_table] if engine.scheduler.running else []
        engine.step()
    assert len(blocks) == 2
    pages = engine._passes.runner.cache.layers[0][0]
    assert not pages[blocks].any()
    assert (pages[2:] == -1).all(), "and no others"


def test_a_sampler_that_raises_for_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = Sampler.sample

    def choosy(self: Sampler, logits: torch.Tensor, rows: Any) -> list[int]:
        if any(row.seed == 99 for row in rows):
            raise ValueError("a row that it can't bear")
        return sample(self, logits, rows)

    monkeypatch.setattr(Sampler, "sample", choosy)
    engine = toy_engine()
    engine.add_request([5, 6], PARAMS, request_id="a")
    engine.add_request(BAD, SamplingParams(max_tokens=10, seed=99), request_id="bad")
    steps = []
    while engine.has_work:
        steps.append(engine.step())
    assert [(f.request_id, f.error_code) for f in steps[0].finishes] == [("bad", "internal")]
    assert [(f.request_id, f.error_code, f.completion_tokens) for f in steps[-1].finishes] == [("a", "", 10)]


class Spoilt(ToyTokenizer):
    """Has no piece for one of the ids."""

    def __init__(self, token_id: int) -> None:
        whole = ToyTokenizer().pieces

        class Pieces:
            byte_level = True
            special_ids = whole.special_ids

            def __getitem__(self, asked: int) -> bytes:
                if asked == token_id:
                    raise KeyError(asked)
                return whole[asked]

        self.pieces = Pieces()


def test_a_detokeniser_that_raises() -> None:
    expected = run_all(toy_engine())
    ids = {name: [i for d in deltas for i in d.token_ids] for name, (deltas, _) in expected.items()}
    only_bad = next(i for i in ids["bad"] if i not in ids["a"] + ids["c"])
    engine = toy_engine()
    engine.tokenizer = Spoilt(only_bad)
    expect_only_bad_fails(run_all(engine), "internal", "this request failed in the engine; the others go on")


@pytest.mark.parametrize("device", [at_once, made_late])
def test_one_whose_last_text_fails_had_a_seat_until_its_last_token(device: Callable[[Engine], Engine]) -> None:
    ids = toy_engine().generate([BAD], PARAMS)[0].token_ids
    count = next(n for n in range(3, 11) if ids[n - 1] not in ids[: n - 1])
    engine = device(toy_engine())
    engine.tokenizer = Spoilt(ids[count - 1])
    engine.add_request([5, 6], replace(PARAMS, max_tokens=1), request_id="a")
    engine.add_request(BAD, replace(PARAMS, max_tokens=count), request_id="bad")
    ends: dict[str, RequestFinish] = {}
    while engine.has_work:
        ends |= {finish.request_id: finish for finish in engine.step().finishes}
    told = [one for record in engine.ledger.records for one in record.finished if one.request_id == "bad"]
    assert [(one.reason, one.seat) for one in told] == [("error", 1)]
    bad = ends["bad"]
    assert (bad.error_code, bad.completion_tokens) == ("internal", count)
    assert engine.pool.available_count == engine.pool.num_blocks


def test_a_device_that_raises_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Sampler, logits: torch.Tensor, rows: Any) -> list[int]:
        raise torch.AcceleratorError("device-side assert")

    engine = toy_engine()
    engine.add_request([5, 6], PARAMS)
    monkeypatch.setattr(Sampler, "sample", broken)
    with pytest.raises(torch.AcceleratorError):
        engine.step()


def test_a_model_that_raises_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = toy_engine()
    engine.add_request([5, 6], PARAMS)
    monkeypatch.setattr(engine._passes.runner, "execute", lambda batch: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.step()
