"""Penalties, bias, min_tokens and stop strings give transformers' answers in every schedule, on a tiny random model.

Where `generate` has the rule, its own is what is compared with; presence and frequency penalty are a loop here, and a
stop string is looked for in the whole text.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.models import save_tiny
from support.reference import Expected, generated, penalised
from support.sweep import ALL_WAYS, TOP, Question, Way, covering, run_this_way
from transformers import PreTrainedModel

from inference import Engine, EngineConfig, SamplingParams
from inference.execution.models.loader import load_model
from inference.text.tokenizer import load_tokenizer

LENGTHS = (1, 4, 16, 17, 33)
TOKENS = 20
SEED = 0
EACH_VALUE = covering(ALL_WAYS, 1)
PAIRS = covering(ALL_WAYS, 2)


@dataclass(frozen=True)
class Ruled:
    """Questions by rule, and the same without any."""

    make: Callable[..., Engine]
    plain: list[Expected]
    questions: dict[str, list[Question]]

    def check(self, ways: list[Way]) -> None:
        together = [question for group in self.questions.values() for question in group]
        random.Random(0).shuffle(together)  # so that rows with other rules are side by side
        for way in ways:
            run_this_way(self.make, way, together)


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Ruled:
    folder: Path = tmp_path_factory.mktemp("ruled")
    peer = save_tiny(folder, "Llama")
    loaded = load_model(EngineConfig(model=str(folder), dtype="float32", device="cpu"))
    tokenizer = load_tokenizer(folder)
    draw = random.Random(SEED)
    common = [draw.randrange(3, 199) for _ in range(12)]
    prompts = [(common + [draw.randrange(3, 199) for _ in range(40)])[:length] for length in LENGTHS]
    plain = [generated(peer, prompt, TOKENS) for prompt in prompts]

    def question(prompt: list[int], expected: Expected, **rules: Any) -> Question:
        params = SamplingParams(temperature=0.0, max_tokens=TOKENS, logprobs=TOP, **rules)
        return Question(prompt, params, expected, tokenizer.decode(expected.ids))

    questions = {
        name: [question(prompt, theirs(peer, prompt), **ours) for prompt in prompts]
        for name, (ours, theirs) in rules_of(plain).items()
    }
    questions["stop string"] = [
        stopped(tokenizer, prompt, expected, 3 + 3 * number)
        for number, (prompt, expected) in enumerate(zip(prompts, plain, strict=True))
    ]

    def make(**settings: Any) -> Engine:
        return Engine.from_parts(EngineConfig(dtype="float32", **settings), loaded.model, tokenizer)

    return Ruled(make, plain, questions)


Rule = tuple[dict[str, Any], Callable[[PreTrainedModel, list[int]], Expected]]


def rules_of(plain: list[Expected]) -> dict[str, Rule]:
    """Of each rule: our parameters, and transformers' answer to a prompt."""
    often = [token_id for token_id, _ in Counter(i for one in plain for i in one.ids).most_common(24)]
    bias = {often[0]: -100.0, often[1]: -1.5, often[5]: 2.5, often[9]: 3.0}

    def with_generate(**rules: Any) -> Callable[[PreTrainedModel, list[int]], Expected]:
        return lambda peer, prompt: generated(peer, prompt, TOKENS, **rules)

    def with_loop(presence: float, frequency: float) -> Rule:
        ours = {"presence_penalty": presence, "frequency_penalty": frequency}
        return ours, lambda peer, prompt: penalised(peer, prompt, TOKENS, presence, frequency)

    ends = {"stop_token_ids": often, "min_tokens": 9}
    theirs_ends = {"eos_token_id": [2, *often], "min_new_tokens": 9}
    theirs_bias = {"sequence_bias": [[[token_id], value] for token_id, value in bias.items()]}
    return {
        "repetition penalty": ({"repetition_penalty": 1.3}, with_generate(repetition_penalty=1.3)),
        "presence penalty": with_loop(1.5, 0.0),
        "frequency penalty": with_loop(0.0, 0.9),
        "both penalties": with_loop(-0.7, 1.1),
        "bias": ({"logit_bias": bias}, with_generate(**theirs_bias)),
        "min_tokens": (ends, with_generate(**theirs_ends)),
        "three at once": (
            {"repetition_penalty": 1.3, "logit_bias": bias, **ends},
            with_generate(repetition_penalty=1.3, **theirs_bias, **theirs_ends),
        ),
    }


def stopped(tokenizer: Any, prompt: list[int], plain: Expected, place: int) -> Question:
    """It stops at text that begins in one token and ends in the next one, at `place`; it may stand earlier, too."""
    texts = [tokenizer.decode(plain.ids[:count]) for count in range(len(plain.ids) + 1)]
    middle = len(texts[place])
    stop = texts[-1][middle - 1 : middle + 1]
    count = next(count for count, text in enumerate(texts) if stop in text)
    expected = Expected(plain.ids[:count], plain.logprobs[:count], plain.gap)
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, logprobs=TOP, stop=(stop,))
    return Question(prompt, params, expected, texts[count].partition(stop)[0])


def test_each_rule_changes_answers_and_none_hangs_on_rounding(ruled: Ruled) -> None:
    for name, group in ruled.questions.items():
        changed = sum(one.expected.ids != plain.ids for one, plain in zip(group, ruled.plain, strict=True))
        assert changed > len(LENGTHS) // 2, name
        assert min(question.expected.gap for question in group) > 1e-3, name


def test_min_tokens_is_what_keeps_answers_from_ending(ruled: Ruled) -> None:
    lengths = {len(question.expected.ids) for question in ruled.questions["min_tokens"]}
    assert 10 in lengths, "one ended as soon as it might"
    for question in ruled.questions["min_tokens"]:
        assert not set(question.expected.ids[:9]) & set(question.params.stop_token_ids)


def test_rules_in_schedules(ruled: Ruled) -> None:
    ruled.check(EACH_VALUE)


@pytest.mark.slow
def test_rules_in_schedules_pairs(ruled: Ruled) -> None:
    ruled.check(PAIRS)
