"""Bias, penalties and bars, each against its definition, and their order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inference.config import SamplingParams
from inference.execution.logit_rules import LARGEST, with_rules
from inference.scheduling.token_counts import TokenCounts

VOCAB = 100
LOGITS = np.random.default_rng(0).normal(scale=3, size=VOCAB).astype(np.float32)


def packed(allowed: list[int], vocab: int = VOCAB) -> np.ndarray:
    """A mask as grammar libraries fill it, bit by bit."""
    words = [0] * -(-vocab // 32)
    for token_id in allowed:
        words[token_id // 32] |= 1 << token_id % 32
    return np.array(words, np.uint32).view(np.int32)


def ruled(
    logits: np.ndarray = LOGITS,
    counts: TokenCounts | None = None,
    allowed: np.ndarray | None = None,
    ends: tuple[int, ...] = (),
    **params: object,
) -> np.ndarray:
    kept = logits.copy()
    result = with_rules(logits, SamplingParams.from_mapping(params), counts, allowed, ends)
    assert np.array_equal(logits, kept), "the given logits stay as they are"
    return result


def test_bias_is_added() -> None:
    expected = LOGITS.copy()
    expected[3] += 1.5
    expected[99] -= 100
    np.testing.assert_array_equal(ruled(logit_bias={"3": 1.5, "99": -100}), expected)


def test_a_bias_of_100_bans_and_forces() -> None:
    assert ruled(logit_bias={i: 100 for i in (17,)}).argmax() == 17
    best = int(LOGITS.argmax())
    assert ruled(logit_bias={best: -100}).argmax() == np.argsort(-LOGITS)[1]


def test_a_bias_past_the_vocabulary_raises() -> None:
    with pytest.raises(IndexError):
        ruled(logit_bias={VOCAB: 1.0})


PROMPT, ANSWER = [1, 2, 2, 3], [3, 4, 4, 4]


@pytest.mark.parametrize("penalty", [1.3, 2.0, 0.7])
def test_repetition_is_that_of_transformers(penalty: float) -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    expected = RepetitionPenaltyLogitsProcessor(penalty)(
        torch.tensor([PROMPT + ANSWER]), torch.from_numpy(LOGITS.copy())[None]
    )
    result = ruled(counts=TokenCounts(PROMPT, ANSWER), repetition_penalty=penalty)
    np.testing.assert_allclose(result, expected[0].numpy(), rtol=1e-6)
    assert (result != LOGITS).nonzero()[0].tolist() == [1, 2, 3, 4]


def test_presence_and_frequency_look_at_the_answer_alone() -> None:
    expected = LOGITS.copy()
    expected[3] -= 0.5 + 0.25
    expected[4] -= 0.5 + 3 * 0.25
    result = ruled(counts=TokenCounts(PROMPT, ANSWER), presence_penalty=0.5, frequency_penalty=0.25)
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert np.array_equal(np.delete(result, [3, 4]), np.delete(LOGITS, [3, 4]))


def test_order_is_bias_repetition_frequency_and_presence() -> None:
    logits = np.full(VOCAB, -1.0, np.float32)
    result = ruled(
        logits,
        TokenCounts(PROMPT, ANSWER),
        logit_bias={4: 3.0},
        repetition_penalty=2.0,
        frequency_penalty=0.25,
        presence_penalty=0.5,
    )
    assert result[4] == (-1.0 + 3.0) / 2.0 - 3 * 0.25 - 0.5
    assert result[1] == -2.0
    assert result[0] == -1.0


def test_penalties_without_counts_raise() -> None:
    with pytest.raises(ValueError, match="not counted"):
        ruled(presence_penalty=1.0)


@pytest.mark.parametrize("penalty", [5e-324, 1e-300, 10.0])
def test_enormous_logits_never_become_infinite(penalty: float) -> None:
    logits = np.array([LARGEST, -LARGEST, 0.0, 1.0, -np.inf], np.float32)
    result = ruled(logits, TokenCounts([0, 1, 2, 3, 4]), repetition_penalty=penalty)
    assert not np.isnan(result).any()
    assert result.max() <= LARGEST
    assert result[4] == -np.inf


@pytest.mark.parametrize("vocab", [1, 7, 31, 32, 33, 64, 100])
@pytest.mark.parametrize("kind", ["packed", "bool"])
def test_a_mask_bars_all_the_others(vocab: int, kind: str) -> None:
    logits = LOGITS[:vocab]
    allowed = [i for i in (0, 5, 31, 32, 63, 99) if i < vocab]
    mask = packed(allowed, vocab) if kind == "packed" else np.isin(np.arange(vocab), allowed)
    result = ruled(logits, allowed=mask)
    assert np.isfinite(result).nonzero()[0].tolist() == allowed
    np.testing.assert_array_equal(result[allowed], logits[allowed])


def test_a_mask_wider_or_narrower_than_the_vocabulary() -> None:
    wide = np.isfinite(ruled(allowed=packed([2, 98, 120], 160)))
    assert wide.nonzero()[0].tolist() == [2, 98]
    for narrow in (packed(list(range(32)), 32), np.ones(32, bool)):
        assert np.isfinite(ruled(allowed=narrow)).nonzero()[0].tolist() == list(range(32))


def test_a_mask_of_another_type_is_refused() -> None:
    with pytest.raises(ValueError, match="int64"):
        ruled(allowed=np.ones(VOCAB, np.int64))


def test_nothing_lifts_a_bar() -> None:
    result = ruled(allowed=packed([1, 2]), ends=(2,), logit_bias={2: 100, 3: 100})
    assert np.isfinite(result).nonzero()[0].tolist() == [1]
    barred = LOGITS.copy()
    barred[5] = -np.inf
    assert ruled(barred, TokenCounts([5], [5]), logit_bias={5: 100}, frequency_penalty=-2.0)[5] == -np.inf


def test_a_grammar_that_allows_only_the_end_wins_over_min_tokens() -> None:
    assert np.isfinite(ruled(allowed=packed([7]), ends=(7, 8))).nonzero()[0].tolist() == [7]
    assert np.isfinite(ruled(allowed=packed([7, 8, 9]), ends=(7, 8))).nonzero()[0].tolist() == [9]


def test_bars_that_leave_nothing() -> None:
    assert (ruled(allowed=packed([])) == -np.inf).all()
    assert (ruled(allowed=packed([]), ends=(3,)) == -np.inf).all()
    assert (ruled(ends=tuple(range(VOCAB))) == -np.inf).all()


def test_ends_outside_the_vocabulary_are_passed_over() -> None:
    result = ruled(ends=(4, -1, 10**6, VOCAB))
    assert np.isneginf(result).nonzero()[0].tolist() == [4]
