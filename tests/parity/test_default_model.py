"""The default model through the whole engine against transformers, greedy, on real questions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from parity.conftest import COUNT, END, GREEDY, TOKENS, Best, best_tokens, engine_of, generated, without_end
from transformers import PreTrainedModel

from inference.engine import Engine
from inference.execution.models.loader import LoadedModel

ALONE = range(0, COUNT, 5)  # one at a time takes a second each; test_each_alone does all
WITH_GENERATE = (0, 17)
Answers = list[list[int]]


def answers(engine: Engine, prompts: list[list[int]]) -> Answers:
    return [without_end(output.token_ids) for output in engine.generate(prompts, GREEDY)]


@pytest.fixture(scope="module")
def together(ours: LoadedModel, prompts: list[list[int]]) -> Answers:
    """All answers from one engine whose pool holds a quarter of them."""
    engine = engine_of(ours, kv_blocks=100, max_num_seqs=COUNT)
    result = answers(engine, prompts)
    assert sum(len(record.preempted) for record in engine.ledger.records) > 0
    assert max(len(record.rows) for record in engine.ledger.records) > 5
    return result


@pytest.fixture(scope="module")
def best(together: Answers, prompts: list[list[int]], peer: PreTrainedModel) -> list[Best]:
    return [best_tokens(peer, prompt, ids) for prompt, ids in zip(prompts, together, strict=True)]


def test_all_together_equal_transformers(together: Answers, best: list[Best]) -> None:
    assert len(together) == COUNT
    for ids, theirs in zip(together, best, strict=True):
        expected = theirs.ids[:, 0].tolist()
        assert ids == expected[: len(ids)]
        assert len(ids) == TOKENS or expected[len(ids)] == END


def test_some_equal_generate(together: Answers, prompts: list[list[int]], peer: PreTrainedModel) -> None:
    """`generate` itself, so that the shortcut of `best_tokens` is not taken on trust."""
    for i in WITH_GENERATE:
        assert together[i] == generated(peer, prompts[i])


def test_some_alone_equal_all_together(together: Answers, prompts: list[list[int]], ours: LoadedModel) -> None:
    engine = engine_of(ours, kv_blocks=100)
    for i in ALONE:
        assert answers(engine, [prompts[i]]) == [together[i]]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_each_alone_equals_generate(ours: LoadedModel, prompts: list[list[int]], peer: PreTrainedModel) -> None:
    engine = engine_of(ours, kv_blocks=100)
    for prompt in prompts:
        assert answers(engine, [prompt]) == [generated(peer, prompt)]


@pytest.mark.slow
@pytest.mark.parametrize(("block_size", "budget"), [(1, 64), (4, 77), (16, 512)])
def test_block_sizes_and_chunks(
    block_size: int, budget: int, together: Answers, prompts: list[list[int]], ours: LoadedModel
) -> None:
    few = slice(0, 12)
    engine = engine_of(ours, block_size=block_size, kv_blocks=900 // block_size, max_num_batched_tokens=budget)
    assert answers(engine, prompts[few]) == together[few]
    assert sum(len(record.preempted) for record in engine.ledger.records) > 0


def test_bfloat16_differs_only_where_tokens_are_nearly_equal(
    ours_bfloat16: LoadedModel,
    prompts: list[list[int]],
    together: Answers,
    best: list[Best],
    record_property: Callable[[str, object], None],
) -> None:
    """Where an answer first leaves float32's, which is transformers', its token is among transformers' best five there
    and within 0.125 nats of the best. After that the two answers are about different texts."""
    engine = engine_of(ours_bfloat16, max_num_seqs=COUNT)
    gaps = []
    for ids, exact, theirs in zip(answers(engine, prompts), together, best, strict=True):
        pairs = enumerate(zip([*ids, END][:TOKENS], [*exact, END][:TOKENS], strict=False))
        place, token = next(((i, mine) for i, (mine, other) in pairs if mine != other), (None, None))
        if place is not None:
            assert token in theirs.ids[place]
            gaps.append(float(theirs.below[place][theirs.ids[place] == token]))
    widest = max(gaps, default=0.0)
    print(f"\nbfloat16: {len(gaps)} of {COUNT} answers leave float32's, at tokens at most {widest:.3f} nats apart")
    record_property("bfloat16_differences", len(gaps))
    assert widest <= 0.125
