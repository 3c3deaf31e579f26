"""Sampling of rows: the kernel against the reference, which draws the same from the same numbers."""

import pytest
import torch

from kernels import ops, reference
from kernels.reference import IDS, NUMERICAL_ERROR, SPAN, SPANS, UNDECIDED


@pytest.fixture
def sample_rows(load_backend):
    return load_backend("triton").sample_rows


def rows_of(count, vocab, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return (
        3 * torch.randn(count, vocab, generator=draw),
        torch.rand(count, generator=draw) * 1.5 + 0.05,
        torch.randint(0, 1 << 62, (count,), generator=draw),
        torch.randint(0, 1000, (count,), generator=draw),
    )


@pytest.mark.parametrize("vocab", [1, 200, 256, 4096, 5000])
def test_it_draws_what_the_reference_draws(sample_rows, vocab):
    args = rows_of(16, vocab)
    actual = sample_rows(*args)
    assert actual.dtype == torch.int64
    assert actual.tolist() == reference.sample_rows(*args).tolist()


def test_temperatures_near_zero_and_high(sample_rows):
    logits, temperatures, seeds, indices = rows_of(12, 3000, seed=1)
    temperatures[:6], temperatures[6:] = 1e-5, 100.0
    args = (logits, temperatures, seeds, indices)
    expected = reference.sample_rows(*args)
    assert sample_rows(*args).tolist() == expected.tolist()
    assert expected[:6].tolist() == logits[:6].argmax(1).tolist()
    assert expected[6:].tolist() != logits[6:].argmax(1).tolist()


def test_greedy_takes_the_lowest_of_equals(sample_rows):
    logits, temperatures, seeds, indices = rows_of(3, 9000)
    logits[0, [8999, 4500, 17]] = 99.0
    logits[1, [4095, 4096]] = 99.0
    logits[2] = 0.0
    temperatures[:] = 0
    for sample in (sample_rows, reference.sample_rows):
        assert sample(logits, temperatures, seeds, indices).tolist() == [17, 4095, 0]


def test_rows_that_cannot_be_sampled_say_so_and_harm_no_other(sample_rows):
    logits, temperatures, seeds, indices = rows_of(10, 4500, seed=2)
    sound = reference.sample_rows(logits, temperatures, seeds, indices)
    temperatures[1:4] = 0
    for first in (1, 5):
        logits[first, 4400] = torch.nan
        logits[first + 1, 3] = torch.inf
        logits[first + 2] = -torch.inf
    for sample in (sample_rows, reference.sample_rows):
        ids = sample(logits, temperatures, seeds, indices).tolist()
        assert [i for i, token in enumerate(ids) if token == NUMERICAL_ERROR] == [1, 2, 3, 5, 6, 7]
        assert [ids[i] for i in (0, 4, 8, 9)] == sound[[0, 4, 8, 9]].tolist()


def test_barred_tokens_are_never_drawn(sample_rows):
    logits, temperatures, seeds, indices = rows_of(20, 9000, seed=3)
    allowed = torch.tensor([5, 300, 8999])
    barred = torch.ones(9000, dtype=torch.bool)
    barred[allowed] = False
    logits[:, barred] = -torch.inf
    args = (logits, temperatures, seeds, indices)
    assert sample_rows(*args).tolist() == reference.sample_rows(*args).tolist()
    assert set(sample_rows(*args).tolist()) <= set(allowed.tolist())


def test_a_row_depends_on_nothing_but_itself(sample_rows):
    logits, temperatures, seeds, indices = rows_of(4, 700)
    together = sample_rows(logits, temperatures, seeds, indices)
    wide = torch.full((4, 1400), torch.nan)
    wide[:, ::2] = logits
    alone = [
        sample_rows(wide[i : i + 1, ::2], *(x[i : i + 1] for x in (temperatures, seeds, indices))) for i in range(4)
    ]
    assert torch.cat(alone).tolist() == together.tolist()
    assert sample_rows(*(x[:0] for x in (logits, temperatures, seeds, indices))).tolist() == []


@pytest.mark.parametrize("kind", [IDS, SPANS], ids=["ids", "spans"])
@pytest.mark.parametrize("lead", [0.0, 1e-5, -1e-5])
def test_what_rounding_could_turn_is_left_undecided(sample_rows, kind, lead):
    """Two weights that are as far apart as their waits are."""
    first, second = (3, 77) if kind == IDS else (3, SPAN + 5)
    waits = reference.waits(9, 4, kind, 0, SPAN)[[first, second] if kind == IDS else [0, 1]]
    logits = torch.full((1, 600), -torch.inf)
    logits[0, first], logits[0, second] = waits[0].log() + lead, waits[1].log()
    args = logits, torch.ones(1), torch.tensor([9]), torch.tensor([4])
    assert sample_rows(*args).tolist() == [UNDECIDED]
    assert reference.sample_rows(*args).item() in (first, second)
    logits[0, first] += 1e-3
    assert sample_rows(*args).tolist() == reference.sample_rows(*args).tolist() == [first]


def test_it_is_seldom_undecided(sample_rows):
    logits = torch.zeros(100, 300)
    ids = sample_rows(logits, torch.ones(100), torch.arange(100), torch.zeros(100, dtype=torch.int64))
    assert (ids == UNDECIDED).sum() <= 1
    assert len(set(ids.tolist())) > 50


def test_frequencies_are_the_probabilities():
    probabilities = torch.tensor([0.5, 0.25, 0.15, 0.1])
    logits, count = torch.full((1, 600), -torch.inf), 4000
    places = torch.tensor([0, 100, 300, 599])
    logits[0, places] = probabilities.log() * 0.7
    ids = reference.sample_rows(
        logits.expand(count, -1), torch.full((count,), 0.7), torch.full((count,), 5), torch.arange(count)
    )
    counts = torch.bincount(ids, minlength=600)[places]
    deviation = (probabilities * (1 - probabilities) * count).sqrt()
    assert ((counts - probabilities * count).abs() < 4 * deviation).all()


def test_what_does_not_fit_is_refused():
    logits, temperatures, seeds, indices = rows_of(3, 10)
    with pytest.raises(ValueError, match="logits must be float32"):
        ops.sample_rows(logits.half(), temperatures, seeds, indices)
    with pytest.raises(ValueError, match="do not fit 3 rows"):
        ops.sample_rows(logits, temperatures[:2], seeds, indices)
    with pytest.raises(ValueError, match="seeds and indices int64"):
        ops.sample_rows(logits, temperatures, seeds.int(), indices)
    assert ops.sample_rows(logits, temperatures, seeds, indices).shape == (3,)
