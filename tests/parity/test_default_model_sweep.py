"""The default model in float32: a sample of all schedules, against transformers' `generate` and logprobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from functools import partial

import pytest
from parity.conftest import engine_of
from support.reference import generated
from support.sweep import AXES, NEVER, TOP, Question, Way, run_this_way
from transformers import PreTrainedModel

from inference.config import SamplingParams
from inference.execution.models.loader import LoadedModel
from inference.text.tokenizer import load_tokenizer

TOKENS, FEW, MANY = 24, 8, 40  # MANY: enough that 32 run at once
QUICK = (
    Way(7, 16, "whole", "hot", 3, True, "continuous", 0),
    Way(7, 4, "block + 1", "cold", 7, False, "static", 4),
)
# Each value of each axis is here. Prompts in chunks of one token only where many run at once: each costs a pass.
SAMPLE = (
    *QUICK,
    Way(1, 16, "whole", "off", 2, False, "continuous", 4),
    Way(1, 4, "7", "cold", 1, True, "dynamic", 0),
    Way(2, 1, "7", "evicted", 3, True, "static", 0),
    Way(2, 16, "block", "off", NEVER, False, "dynamic", 4),
    Way(7, 16, "block - 1", "cold", 1, False, "continuous", 0),
    Way(7, 1, "block + 1", "hot", NEVER, True, "static", 0),
    Way(64, 1, "1", "off", NEVER, True, "continuous", 0),
    Way(64, 16, "7", "hot", 2, True, "dynamic", 4),
    Way(64, 4, "block", "cold", 1, False, "continuous", 0),
    Way(64, 4, "block + 1", "evicted", 7, False, "dynamic", 4),
)


def questions_of(ours: LoadedModel, peer: PreTrainedModel, prompts: list[list[int]], count: int) -> list[Question]:
    """The shortest prompts. All begin with the template's system message, longer than any block here."""
    tokenizer = load_tokenizer(ours.tokenizer_folder)
    questions = []
    for number, prompt in enumerate(sorted(prompts, key=len)[:count]):
        tokens = (TOKENS, TOKENS // 2)[number % 2]
        expected = generated(peer, prompt, tokens)
        params = SamplingParams(temperature=0.0, max_tokens=tokens, logprobs=TOP)
        questions.append(Question(prompt, params, expected, tokenizer.decode(expected.ids)))
    return questions


@pytest.fixture(scope="module")
def few(ours: LoadedModel, peer: PreTrainedModel, prompts: list[list[int]]) -> list[Question]:
    return questions_of(ours, peer, prompts, FEW)


@pytest.fixture(scope="module")
def many(ours: LoadedModel, peer: PreTrainedModel, prompts: list[list[int]]) -> list[Question]:
    return questions_of(ours, peer, prompts, MANY)


def test_the_sample_has_every_value() -> None:
    for values, seen in zip(AXES.values(), zip(*map(astuple, SAMPLE), strict=True), strict=True):
        assert set(seen) == set(values)


@pytest.mark.parametrize("way", QUICK, ids=str)
def test_quick(
    way: Way, ours: LoadedModel, few: list[Question], record_property: Callable[[str, object], None]
) -> None:
    check(way, ours, few, record_property)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", SAMPLE, ids=str)
def test_sample(
    way: Way, ours: LoadedModel, many: list[Question], record_property: Callable[[str, object], None]
) -> None:
    check(way, ours, many if way.batch > FEW else many[:FEW], record_property)


def check(
    way: Way, ours: LoadedModel, questions: list[Question], record_property: Callable[[str, object], None]
) -> None:
    difference = run_this_way(partial(engine_of, ours), way, questions)
    closest = min(question.expected.gap for question in questions)
    print(f"\nlogprobs differ from transformers' by {difference:.1e} at most; the closest two tokens by {closest:.1e}")
    record_property("largest_logprob_difference", difference)
