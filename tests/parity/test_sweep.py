"""Greedy answers in float32 equal transformers' `generate` in every schedule, on tiny random models."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from support.models import save_tiny
from support.reference import generated
from support.sweep import ALL_WAYS, AXES, TOP, Question, Way, covering, run_this_way

from inference import Engine, EngineConfig, SamplingParams
from inference.execution.models.loader import load_model
from inference.text.tokenizer import load_tokenizer

LENGTHS = (1, 2, 4, 5, 15, 16, 17, 33, 40)  # around one block of each size and several of them
FEW, MANY = len(LENGTHS), 70  # more than there are seats, so that some wait
TRIPLES = covering(ALL_WAYS, 3)
PAIRS = covering(ALL_WAYS, 2)
EACH_VALUE = covering(ALL_WAYS, 1)


def make_prompts(seed: int) -> list[list[int]]:
    """Of all lengths; most begin as others do, for whole blocks or for a part of one."""
    draw = random.Random(seed)
    common = [draw.randrange(3, 199) for _ in range(max(LENGTHS))]
    prompts = []
    for number in range(MANY):
        length = LENGTHS[number % FEW]
        shared = length if number < FEW else draw.randint(0, length)
        prompts.append(common[:shared] + [draw.randrange(3, 199) for _ in range(length - shared)])
    return prompts


class Family:
    """A tiny model twice, and what transformers' answers."""

    def __init__(self, folder: Path, family: str, seed: int) -> None:
        peer = save_tiny(folder, family)
        loaded = load_model(EngineConfig(model=str(folder), dtype="float32", device="cpu"))
        tokenizer = load_tokenizer(folder)
        self.make: Callable[..., Engine] = lambda **settings: Engine.from_parts(
            EngineConfig(dtype="float32", **settings), loaded.model, tokenizer
        )
        self.questions = []
        for number, prompt in enumerate(make_prompts(seed)):
            tokens = (16, 3, 9)[number % 3]  # so that they end at different times
            params = SamplingParams(temperature=0.0, max_tokens=tokens, logprobs=TOP)
            expected = generated(peer, prompt, tokens)
            self.questions.append(Question(prompt, params, expected, tokenizer.decode(expected.ids)))

    def check(self, way: Way) -> float:
        return run_this_way(self.make, way, self.questions if way.batch > FEW else self.questions[:FEW])


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Family:
    return Family(tmp_path_factory.mktemp("Llama"), "Llama", 21)


@pytest.fixture(scope="module", params=[("Qwen2", 1), ("Qwen3", 1)], ids=["Qwen2", "Qwen3"])
def qwen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    """Biases, and norms of queries and keys."""
    name, seed = request.param
    return Family(tmp_path_factory.mktemp(name), name, seed)


def test_triples_have_any_three_settings_together() -> None:
    for first, second, third in combinations(AXES, 3):
        met = {(getattr(way, first), getattr(way, second), getattr(way, third)) for way in TRIPLES}
        assert met == {(getattr(way, first), getattr(way, second), getattr(way, third)) for way in ALL_WAYS}
    assert len(TRIPLES) < len(ALL_WAYS) / 20


def test_no_answer_hangs_on_rounding(llama: Family, qwen: Family) -> None:
    """float32 sums in another order differ by 1e-5 here; so another token, or another logprob, is a fault."""
    for family in (llama, qwen):
        assert min(question.expected.gap for question in family.questions) > 1e-3
        assert len({tuple(question.expected.ids) for question in family.questions}) > MANY // 2


def test_any_three_settings_together(llama: Family, record_property: Callable[[str, object], None]) -> None:
    report(record_property, [llama.check(way) for way in TRIPLES])


def test_other_families(qwen: Family, record_property: Callable[[str, object], None]) -> None:
    report(record_property, [qwen.check(way) for way in EACH_VALUE])


@pytest.mark.slow
def test_other_families_pairs(qwen: Family, record_property: Callable[[str, object], None]) -> None:
    report(record_property, [qwen.check(way) for way in PAIRS])


@pytest.mark.slow
@pytest.mark.parametrize("policy", AXES["policy"])
@pytest.mark.parametrize("block", AXES["block"])
@pytest.mark.parametrize("batch", AXES["batch"])
def test_all(
    batch: int, block: int, policy: str, llama: Family, record_property: Callable[[str, object], None]
) -> None:
    ways = [way for way in ALL_WAYS if (way.batch, way.block, way.policy) == (batch, block, policy)]
    report(record_property, [llama.check(way) for way in ways])


def report(record_property: Callable[[str, object], None], differences: list[float]) -> None:
    print(f"\n{len(differences)} schedules; logprobs differ from transformers' by {max(differences):.1e} at most")
    record_property("schedules", len(differences))
    record_property("largest_logprob_difference", max(differences))
