"""Counts are those of a plain count, however the tokens came."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from inference.config import SamplingParams
from inference.scheduling.token_counts import TokenCounts

ids = st.lists(st.integers(0, 30) | st.integers(0, 2**31 - 1), max_size=200)


def as_dict(counts: TokenCounts) -> dict[int, int]:
    assert len(counts.ids) == len(set(counts.ids.tolist()))
    return dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True))


@given(ids, ids)
def test_pushed_one_by_one_or_given_at_once(prompt: list[int], answer: list[int]) -> None:
    pushed = TokenCounts(prompt)
    for token_id in answer:
        pushed.push(token_id)
    assert as_dict(pushed) == {**dict.fromkeys(prompt, 0), **Counter(answer)}
    assert as_dict(TokenCounts(prompt, answer)) == as_dict(pushed)


def test_only_requests_with_penalties_are_counted() -> None:
    assert TokenCounts.of(SamplingParams(), [1], [2]) is None
    repetition = TokenCounts.of(SamplingParams(repetition_penalty=1.2), [1], [2])
    presence = TokenCounts.of(SamplingParams(presence_penalty=1.2), [1], [2])
    assert repetition is not None
    assert presence is not None
    assert as_dict(repetition) == {1: 0, 2: 1}
    assert as_dict(presence) == {2: 1}
