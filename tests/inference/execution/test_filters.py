"""Top-k, top-p and min-p keep what their definitions say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.config import SamplingParams
from inference.execution.filters import largest, likely, weights_of


def softmax_after_filters(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """The specification: sort, cut, renormalise, in float64."""
    p = torch.softmax(torch.from_numpy(logits).double() / params.temperature, 0).numpy()
    order = np.argsort(-p, kind="stable")
    allowed = np.ones(len(p), bool)
    if 0 < params.top_k < len(p):
        allowed[order[params.top_k :]] = False
        p = np.where(allowed, p, 0) / p[allowed].sum()
    if params.top_p < 1:
        before = np.cumsum(p[order]) - p[order]
        allowed[order[1:][before[1:] >= params.top_p]] = False
    allowed &= p >= params.min_p * p.max()
    return np.where(allowed, p, 0) / p[allowed].sum()


params_of_all_kinds = st.builds(
    lambda temperature, top_k, top_p, min_p: SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    ),
    st.sampled_from([0.3, 1.0, 2.0]),
    st.sampled_from([0, 1, 5, 1000, 2000]),
    st.sampled_from([0.0, 0.1, 0.9, 0.999, 1.0]),
    st.sampled_from([0.0, 0.1, 1.0]),
)


@given(params_of_all_kinds, st.integers(0, 1000), st.sampled_from([0.1, 3.0, 10.0]))
@settings(max_examples=100, deadline=None)
def test_only_what_the_parameters_allow_is_kept(params: SamplingParams, seed: int, spread: float) -> None:
    logits = np.random.default_rng(seed).normal(scale=spread, size=1000).astype(np.float32)
    ids, kept = likely(weights_of(logits, float(logits.max()), params.temperature), params)
    weights = kept if ids is None else np.bincount(ids, kept, minlength=1000)
    expected = softmax_after_filters(logits, params)
    shares = weights / weights.sum()
    np.testing.assert_allclose(shares, expected, atol=2e-5)
    assert abs(np.count_nonzero(shares > 1e-36) - np.count_nonzero(expected > 1e-36)) <= 1  # float32 at the border
    assert ids is None or (np.diff(ids) > 0).all()


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 100])
def test_the_largest_with_equals_in_order(count: int) -> None:
    values = np.array([1, 5, 5, 0, 5, 2, 1], np.float32)
    expected = sorted(sorted(range(7), key=lambda place: (-values[place], place))[:count])
    assert largest(values, count).tolist() == expected
