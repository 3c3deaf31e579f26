"""A row that raises, or that could not be made, fails alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inference.config import SamplingParams
from inference.execution.isolated_sampler import FAILED, IsolatedSampler
from inference.execution.sampler import NO_TOKEN, NUMERICAL_ERROR, Sampled, Sampler, SampleRow

LOGITS = torch.randn(4, 40, generator=torch.Generator().manual_seed(0))
GOOD = [SampleRow(SamplingParams(logprobs=2), seed, 5) for seed in range(4)]


def broken_rows() -> dict[str, SampleRow | None]:
    return {
        "bias": SampleRow(SamplingParams(logit_bias=((40, 1.0),)), 1, 0),
        "counts": SampleRow(SamplingParams(presence_penalty=1.0), 1, 0),
        "mask": SampleRow(SamplingParams(), 1, 0, allowed=np.ones(2)),
        "seed": SampleRow(SamplingParams(), 1 << 70, 0),
        "none": None,
    }


@pytest.mark.parametrize("kind", broken_rows())
@pytest.mark.parametrize("place", [0, 2, 3])
def test_the_others_do_not_stir(kind: str, place: int) -> None:
    alone = Sampler().sample(LOGITS, GOOD)
    rows: list[SampleRow | None] = [*GOOD]
    rows[place] = broken_rows()[kind]
    alone[place] = Sampled(FAILED)
    assert IsolatedSampler(Sampler()).sample(LOGITS, rows) == alone


def test_all_fail_and_none_at_all() -> None:
    sampler = IsolatedSampler(Sampler())
    assert sampler.sample(LOGITS, [None] * 4) == [Sampled(FAILED)] * 4
    assert sampler.sample(LOGITS[:0], []) == []


def test_the_markers_are_different_and_no_ids() -> None:
    assert len({FAILED, NO_TOKEN, NUMERICAL_ERROR}) == 3
    assert max(FAILED, NO_TOKEN, NUMERICAL_ERROR) < 0


@pytest.mark.parametrize("error", [torch.AcceleratorError("device-side assert"), MemoryError()])
@pytest.mark.parametrize("first_time", [True, False])
def test_a_broken_device_is_not_one_rows_matter(error: Exception, first_time: bool) -> None:
    class Broken(Sampler):
        def sample(self, logits, rows):
            raise error if first_time or len(rows) == 1 else ValueError

    with pytest.raises(type(error)):
        IsolatedSampler(Broken()).sample(LOGITS, GOOD)
