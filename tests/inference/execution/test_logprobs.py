"""Logprobs are the log-softmax of the model's own logits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from inference.config import SamplingParams
from inference.execution.logprobs import token_logprobs
from inference.execution.sampler import Sampler, SampleRow
from inference.scheduling.token_counts import TokenCounts


@pytest.mark.parametrize("vocab", [1, 5, 1000, 49152])
@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0])
def test_against_log_softmax(vocab: int, spread: float) -> None:
    logits = spread * torch.randn(vocab, generator=torch.Generator().manual_seed(vocab))
    expected = torch.log_softmax(logits.double(), 0)
    token_id = vocab // 2
    result = token_logprobs(logits.numpy(), token_id, 20)
    assert result.token_id == token_id
    assert abs(result.logprob - expected[token_id].item()) < 1e-5
    assert len(result.top) == min(20, vocab)
    for place, (token, logprob) in enumerate(result.top):
        assert abs(logprob - expected[token].item()) < 1e-5
        assert logprob <= 0
        later = expected.clone()
        later[[i for i, _ in result.top[:place]]] = -math.inf
        assert expected[token] == later.max()


def test_equals_are_in_order_of_their_ids() -> None:
    logits = np.array([1, 2, 2, 0, 2], np.float32)
    assert [i for i, _ in token_logprobs(logits, 0, 2).top] == [1, 2]
    assert [i for i, _ in token_logprobs(logits, 0, 5).top] == [1, 2, 4, 0, 3]
    many = np.tile(np.array([1, 2], np.float32), 500)
    assert [i for i, _ in token_logprobs(many, 0, 20).top] == list(range(1, 41, 2))


def test_enormous_and_impossible_logits() -> None:
    logits = np.array([3e38, -np.inf, 3e38, -3e38], np.float32)
    result = token_logprobs(logits, 2, 4)
    assert result.logprob == pytest.approx(-math.log(2))
    assert [i for i, _ in result.top] == [0, 2, 3]
    assert all(math.isfinite(logprob) for _, logprob in result.top)


def row(**params: object) -> SampleRow:
    return SampleRow(SamplingParams.from_mapping(params), 3, 0, (1,), TokenCounts([5], [6]))


@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_only_rows_that_ask_get_them(count: int) -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(1))
    rows = [row(), row(logprobs=count), row(temperature=0), row(temperature=0, logprobs=count)]
    sampled = Sampler().sample(logits, rows)
    assert [token.logprobs is None for token in sampled] == [True, False, True, False]
    for token in (sampled[1], sampled[3]):
        assert token.logprobs is not None
        assert token.logprobs.token_id == token.token_id
        assert len(token.logprobs.top) == count


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_they_are_of_the_logits_before_all_rules(temperature: float) -> None:
    """And the chosen token is reported though it isn't among the most likely."""
    logits = torch.zeros(1, 50)
    logits[0, 9] = 5.0
    asked = row(temperature=temperature, logprobs=1, logit_bias={6: 100, 9: -100}, repetition_penalty=1.5)
    sampled = Sampler().sample(logits, [asked])[0]
    expected = torch.log_softmax(logits[0].double(), 0)
    assert sampled.token_id == 6
    assert sampled.logprobs is not None
    assert sampled.logprobs.logprob == pytest.approx(expected[6].item(), abs=1e-5)
    assert sampled.logprobs.top == [(9, pytest.approx(expected[9].item(), abs=1e-5))]
