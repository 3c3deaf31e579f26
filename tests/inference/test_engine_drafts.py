"""Answers with drafts are the answers without: token for token, logprob for logprob, whatever happens around them."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.carrying import check_jobs, random_jobs, run_alone, run_jobs, tight_settings
from support.late import made_late
from support.toy import EOS, VOCAB, ToyModel, toy_engine

from inference.config import SamplingParams
from inference.engine import Engine
from inference.scheduling.outputs import Output
from inference.scheduling.request import FinishReason
from inference.text.grammar import GrammarState

PROMPTS = [[5, 6, 7] * 4, [9, 8], [20, 21, 22, 23, 24, 25, 26]]


def engine_of(drafts: int = 4, rows: int = 8, seed: int = 0, eos_bonus: float = -20.0, **more: Any) -> Engine:
    model = ToyModel(seed=seed, eos_bonus=eos_bonus, repeats=True)
    return toy_engine(model, draft_tokens=drafts, draft_rows=rows, **more)


def at_once(engine: Engine) -> Engine:
    """A device that is done when it comes back."""
    return engine


def drafted(engine: Engine) -> tuple[int, int]:
    """Drafts, and those of them that were right."""
    rows = [row for record in engine.ledger.records for row in record.rows]
    return sum(row.drafted for row in rows), sum(row.accepted for row in rows)


def told(output: Output) -> tuple[Any, ...]:
    return output.token_ids, output.text, output.finish_reason, output.logprobs, output.error_code


def check_equal(params: SamplingParams, least_share: float = 0.1, **more: Any) -> list[Output]:
    """Of three answers, with more and fewer drafts and rows; and drafts were right, so that something was shown."""
    expected = [told(output) for output in engine_of(0, **more).generate(PROMPTS, params)]
    outputs: list[Output] = []
    for drafts, rows in ((1, 8), (4, 8), (16, 64), (16, 4)):
        engine = engine_of(drafts, rows, **more)
        outputs = engine.generate(PROMPTS, params)
        assert [told(output) for output in outputs] == expected
        guessed, right = drafted(engine)
        assert right >= least_share * guessed > 0
        engine.pool.check()
        assert engine.pool.available_count == engine.pool.num_blocks
    return outputs


RULES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "seed": 3},
    "filtered": {"temperature": 1.0, "seed": 4, "top_k": 5, "top_p": 0.9, "min_p": 0.02},
    "repetition": {"temperature": 0.0, "repetition_penalty": 1.05},
    "penalties": {"temperature": 0.0, "presence_penalty": -0.5, "frequency_penalty": 0.05},
    "sampled with penalties": {"temperature": 0.7, "seed": 5, "repetition_penalty": 1.02, "frequency_penalty": 0.02},
    "bias": {"temperature": 0.0, "logit_bias": {"9": 2.0, "30": -100}},
    "logprobs": {"temperature": 0.6, "seed": 6, "logprobs": 5},
}


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_every_rule_holds_at_every_token(rules: dict[str, Any]) -> None:
    for output in check_equal(SamplingParams(max_tokens=80, ignore_eos=True, **rules)):
        assert len(output.token_ids) == 80
        assert (output.logprobs is not None) == ("logprobs" in rules)


def test_fewer_iterations() -> None:
    iterations = []
    for drafts in (0, 4):
        engine = engine_of(drafts)
        engine.generate([PROMPTS[0]], SamplingParams(max_tokens=80, temperature=0.0, ignore_eos=True))
        iterations.append(len(engine.ledger.records))
        rows = [row for record in engine.ledger.records for row in record.rows]
        assert sum(1 + row.accepted for row in rows if row.kind == "decode") == 79
        assert all(0 <= row.accepted <= row.drafted == row.tokens - 1 for row in rows if row.kind == "decode")
        assert all(record.budget.used == sum(row.tokens for row in record.rows) for record in engine.ledger.records)
    assert iterations[1] < 0.7 * iterations[0]


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("device", [at_once, made_late])
def test_the_answers_of_a_crowd(device: Callable[[Engine], Engine], block_size: int, caching: bool) -> None:
    """Arrivals, cancels, stop strings, chunks of prompts beside them and a pool that is too small."""
    guessed = right = preemptions = 0
    for seed in range(3):
        draw = random.Random(seed)
        jobs = random_jobs(draw, range(1, VOCAB), 16, 40 + 8 * block_size, stop=("qj", "dd", "é"))
        model = ToyModel(seed=seed, eos_bonus=-1.0, repeats=True)
        make = partial(toy_engine, model, prefix_caching=caching)
        engine = make(
            draft_tokens=8, draft_rows=12, **tight_settings(draw, jobs, block_size, draw.choice([1, 5, None]))
        )
        preemptions += run_jobs(device(engine), jobs)
        check_jobs(engine, jobs, run_alone(make, jobs))
        guessed, right = guessed + drafted(engine)[0], right + drafted(engine)[1]
    assert right > 10
    assert guessed > right
    assert preemptions > 0


@pytest.mark.parametrize(
    ("device", "every"),  # not in each step of a late device: whoever is preempted while it computes loses that pass
    [(at_once, 1), (at_once, 2), (at_once, 3), (at_once, 7), (made_late, 3), (made_late, 7)],
)
def test_preemption_between_any_two_iterations(device: Callable[[Engine], Engine], every: int) -> None:
    def preempt(engine: Engine, iteration: int) -> None:
        running = engine.scheduler.running
        if iteration % every == 0 and running:
            engine.scheduler.preempt(next(reversed(running.values())))

    right = 0
    for seed in range(3):
        jobs = random_jobs(random.Random(seed), range(1, VOCAB), 8, 80, stop=("qj", "dd"))
        make = partial(toy_engine, ToyModel(seed=seed, eos_bonus=-2.0, repeats=True))
        engine = make(kv_blocks=256, max_num_batched_tokens=256, draft_tokens=8, draft_rows=16)
        run_jobs(device(engine), jobs, preempt)
        check_jobs(engine, jobs, run_alone(make, jobs))
        right += drafted(engine)[1]
    assert right > 0 or every == 1  # in each iteration: hardly anybody decodes


def single(engine: Engine, params: SamplingParams) -> tuple[Output, int]:
    """The answer to the first prompt, and how many drafts the iteration that ended it had, right or not."""
    (output,) = engine.generate([PROMPTS[0]], params)
    return output, engine.ledger.records[-1].rows[0].drafted


def middle_of_drafts(params: SamplingParams) -> int:
    """The place in the answer of a token that was the second of three or more that one iteration brought."""
    engine = engine_of(8)
    engine.generate([PROMPTS[0]], params)
    place = 1
    for record in list(engine.ledger.records)[1:]:
        if record.rows[0].accepted >= 3 and place > 10:
            return place + 1
        place += 1 + record.rows[0].accepted
    raise AssertionError("no iteration brought so many")


LONG = SamplingParams(max_tokens=80, temperature=0.0, ignore_eos=True)


def ends_there(**changes: Any) -> Output:
    """An end in the midst of drafts that were right: nothing after it is told, and it is as without drafts."""
    params = SamplingParams(**{**{"max_tokens": 80, "temperature": 0.0, "ignore_eos": True}, **changes})
    (plain, _), (output, drafts) = single(engine_of(0), params), single(engine_of(8), params)
    assert told(output) == told(plain)
    assert drafts > 0
    return output


def test_an_end_token_in_the_midst_of_drafts() -> None:
    (whole,) = engine_of(0).generate([PROMPTS[0]], LONG)
    place = middle_of_drafts(LONG)
    token = whole.token_ids[place]
    first = whole.token_ids.index(token)
    output = ends_there(stop_token_ids=[token], min_tokens=place)
    assert output.finish_reason is FinishReason.STOP
    assert first <= place
    assert len(output.token_ids) >= place + 1


def test_a_length_in_the_midst_of_what_could_be_drafted() -> None:
    for tokens in range(middle_of_drafts(LONG), middle_of_drafts(LONG) + 3):
        output, _ = single(engine_of(8), SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True))
        assert (len(output.token_ids), output.finish_reason) == (tokens, FinishReason.LENGTH)
        plain, _ = single(engine_of(0), SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True))
        assert told(output) == told(plain)


def test_a_stop_string_in_the_midst_of_drafts() -> None:
    (whole,) = engine_of(0).generate([PROMPTS[0]], LONG)
    place = middle_of_drafts(LONG)
    engine = engine_of(0)
    for length in range(2, 12):  # the shortest text that ends there and stands nowhere before
        stop = engine.tokenizer.decode(whole.token_ids[place - length : place + 1])
        if whole.text.find(stop) + len(stop) >= len(engine.tokenizer.decode(whole.token_ids[: place + 1])):
            break
    output = ends_there(stop=(stop,))
    assert output.finish_reason is FinishReason.STOP
    assert stop not in output.text


def test_each_token_has_a_delta_of_its_own() -> None:
    """So that the numbers of deltas are a function of the answer alone, and a request can be taken up anywhere."""
    deltas = []
    for drafts in (0, 8):
        engine = engine_of(drafts)
        engine.add_request(PROMPTS[0], LONG, request_id="r")
        found = []
        while engine.has_work:
            found += engine.step().deltas
        deltas.append([(delta.seq, delta.text, delta.token_ids) for delta in found])
    assert deltas[0] == deltas[1]


def test_one_is_taken_up_anywhere() -> None:
    (whole,) = engine_of(0).generate([PROMPTS[0]], LONG)
    for given in (1, 17, 40, 79):
        engine = engine_of(8)
        engine.add_request(PROMPTS[0], LONG, request_id="r", output_ids=whole.token_ids[:given])
        ids: list[int] = []
        while engine.has_work:
            step = engine.step()
            ids += [i for event in (*step.deltas, *step.finishes) for i in event.token_ids]
        assert ids[-(80 - given) :] == whole.token_ids[given:]


def test_a_cancel_between_iterations_with_drafts() -> None:
    (whole,) = engine_of(0).generate([PROMPTS[0]], LONG)
    engine = engine_of(8)
    engine.add_request(PROMPTS[0], LONG, request_id="r")
    while drafted(engine)[1] < 10:
        engine.step()
    engine.cancel("r")
    (finish,) = engine.step().finishes
    assert finish.finish_reason is FinishReason.CANCELLED
    assert finish.completion_tokens == len(whole.token_ids[: finish.completion_tokens]) > 10
    assert engine.pool.available_count == engine.pool.num_blocks


class Alternating:
    """A format: letters below 30 and others take turns in pairs."""

    def __init__(self) -> None:
        self.taken = 0
        self.ended = False

    def advance(self, token_id: int) -> None:
        if not self.mask()[token_id]:
            raise AssertionError(f"{token_id} is not allowed after {self.taken}")
        self.taken += 1

    def mask(self) -> np.ndarray:
        low = np.arange(VOCAB) < 30
        return low if self.taken // 2 % 2 else ~low


class Format:
    def start(self, end_ids: Any) -> GrammarState:
        return Alternating()  # type: ignore[return-value]


def test_a_format_holds_at_every_token() -> None:
    params = SamplingParams(
        max_tokens=60, temperature=0.3, seed=1, ignore_eos=True, response_format={"type": "json_object"}
    )
    answers = []
    for drafts in (0, 8):
        engine = engine_of(drafts)
        engine.add_request(PROMPTS[0], params, request_id="r", grammar=Format())  # type: ignore[arg-type]
        ids: list[int] = []
        while engine.has_work:
            step = engine.step()
            ids += [i for event in (*step.deltas, *step.finishes) for i in event.token_ids]
        answers.append(ids)
        assert (drafted(engine)[1] > 5) == bool(drafts)
    assert answers[0] == answers[1]
    assert all((token < 30) == bool(place // 2 % 2) for place, token in enumerate(answers[0]))


def breaking(breaks: Callable[[list[int]], bool], drafts: int) -> Engine:
    engine = engine_of(drafts)
    engine._passes.runner.model.breaks = breaks  # type: ignore[attr-defined]
    return engine


def test_nan_where_it_would_be_without_drafts() -> None:
    (whole,) = engine_of(0).generate([PROMPTS[0]], LONG)
    place = middle_of_drafts(LONG)
    bad = PROMPTS[0] + whole.token_ids[:place]
    answers = []
    for drafts in (0, 8):
        engine = breaking(lambda ids: ids == bad, drafts)
        (output,) = engine.generate([PROMPTS[0]], LONG)
        answers.append(told(output))
        assert engine.pool.available_count == engine.pool.free_count == engine.pool.num_blocks
    assert answers[0] == answers[1]
    assert answers[1][2:] == (FinishReason.ERROR, None, "numerical_error")


def test_nan_that_drafts_brought_is_none_of_the_request() -> None:
    """A weight of zero times NaN is NaN, so a draft can spoil the positions before it. It is computed again without."""
    (whole,) = engine_of(0).generate([PROMPTS[0]], LONG)
    engine = engine_of(8)
    forward, spoilt = engine._passes.runner.model.forward, []

    def spoil(batch: Any, cache: Any) -> Any:
        logits = forward(batch, cache)
        if len(logits) > 3 and not spoilt:
            spoilt.append(True)
            logits[:] = float("nan")
        return logits

    engine._passes.runner.model.forward = spoil  # type: ignore[method-assign]
    (output,) = engine.generate([PROMPTS[0]], LONG)
    assert spoilt
    assert told(output) == told(whole)
    (record,) = [record for record in engine.ledger.records if record.preempted]
    assert (record.rows[0].accepted, record.kv.used) == (0, 0)
    assert record.kv.cached == 0, "what may be spoilt can be found again"
    assert all(not row.drafted for later in engine.ledger.records if later.n > record.n for row in later.rows)


def test_an_end_token_that_was_drafted_ends_it() -> None:
    params = SamplingParams(max_tokens=80, temperature=1.2, seed=8)
    for seed in range(6):
        plain = [told(output) for output in engine_of(0, seed=seed, eos_bonus=1.0).generate(PROMPTS, params)]
        prompts = [*PROMPTS[0], EOS]
        assert plain == [told(o) for o in engine_of(8, seed=seed, eos_bonus=1.0).generate(PROMPTS, params)]
        (one,), (other,) = (
            engine_of(drafts, seed=seed, eos_bonus=1.0).generate([prompts * 2], params) for drafts in (0, 8)
        )
        assert told(one) == told(other)
