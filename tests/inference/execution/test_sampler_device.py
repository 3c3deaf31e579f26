"""Sampling on a device gives each row the token that the CPU gives it, and moves no more than it must."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from support import gpu

from inference.config import SamplingParams
from inference.execution.randomness import Noise
from inference.execution.sampler import NO_TOKEN, NUMERICAL_ERROR, Sampled, Sampler, SampleRow
from kernels import ops

VOCAB = 1000


@pytest.fixture(autouse=True)
def _on_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from kernels.triton import backend

    if gpu.IS_COMPILED and not gpu.IS_HERE:
        pytest.skip("compiled kernels need a CUDA device")
    monkeypatch.setattr(ops, "backend", lambda _: gpu.OnDevice(backend) if gpu.IS_COMPILED else backend)


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Seeds of the rows that were sampled on the host."""
    seeds: list[int] = []
    on_host = Sampler._sample_row

    def noted(sampler: Sampler, given: np.ndarray, row: SampleRow, best: int, peak: float) -> Sampled:
        seeds.append(row.seed)
        return on_host(sampler, given, row, best, peak)

    monkeypatch.setattr(Sampler, "_sample_row", noted)
    return seeds


def row(seed: int, index: int = 3, allowed: np.ndarray | None = None, **params: object) -> SampleRow:
    return SampleRow(SamplingParams.from_mapping(params), seed, index, allowed=allowed)


def test_every_kind_of_row(moved: list[int]) -> None:
    rows = [
        row(0, temperature=0.0),
        row(1, temperature=0.8),
        row(2, temperature=1.3),
        row(3, temperature=0.8, top_p=0.9),
        row(4, temperature=0.8, top_k=7),
        row(5, temperature=0.0, top_p=0.5),  # greedy: filters make no difference
        row(6, temperature=0.8, logprobs=2),
        row(7, temperature=0.7, allowed=np.zeros(VOCAB, dtype=bool)),
        row(8, temperature=0.7),
        row(9, temperature=0.7, min_p=0.1),
        row((1 << 63) - 1, temperature=0.01),
    ]
    logits = 3 * torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(1))
    logits[8, 500] = torch.nan
    logits[9, 500] = torch.inf
    actual = Sampler().sample_on_device(logits, rows)
    assert moved == [3, 4, 6, 7]
    assert actual == Sampler().sample(logits, rows)
    assert actual[7].token_id == NO_TOKEN
    assert actual[8].token_id == actual[9].token_id == NUMERICAL_ERROR
    assert actual[6].logprobs is not None


def test_many_draws_are_the_cpus(moved: list[int]) -> None:
    rows = [row(seed, seed % 7, temperature=0.1 + seed % 5 / 3) for seed in range(60)]
    logits = 3 * torch.randn(60, VOCAB, generator=torch.Generator().manual_seed(2))
    actual = Sampler().sample_on_device(logits, rows)
    assert len(moved) <= 2
    assert actual == Sampler().sample(logits, rows)


def test_an_undecided_row_is_decided_where_all_are(moved: list[int]) -> None:
    waits = Noise().waits(9, 3, 1, 0, 256)
    logits = torch.full((1, VOCAB), -torch.inf)
    logits[0, 10], logits[0, 20] = float(np.log(waits[10])), float(np.log(waits[20]))
    rows = [row(9, temperature=1.0)]
    actual = Sampler().sample_on_device(logits, rows)
    assert moved == [9]
    assert actual == Sampler().sample(logits, rows)
    assert actual[0].token_id in (10, 20)


@pytest.mark.parametrize("kind", [0, 1])
def test_both_sides_have_the_same_waits(kind: int, waits: Callable[..., torch.Tensor]) -> None:
    theirs = waits(77, 5, kind, 512, 256).numpy()
    np.testing.assert_allclose(Noise().waits(77, 5, kind, 512, 256), theirs, rtol=1e-14)


@pytest.fixture
def waits() -> Callable[..., torch.Tensor]:
    from kernels.reference import waits

    return waits
