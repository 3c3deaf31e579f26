"""Each row is sampled as if it were alone, and as often as its probabilities say."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.config import SamplingParams
from inference.execution.sampler import NUMERICAL_ERROR, Sampler, SampleRow, _likely, _pick, _weights, uniform

GREEDY = SamplingParams(temperature=0.0)
VOCAB = 1000


def row(seed: int = 1, index: int = 0, end_ids: tuple[int, ...] = (), **params: float) -> SampleRow:
    return SampleRow(SamplingParams(**params), seed, index, end_ids)  # type: ignore[arg-type]


def random_logits(rows: int, vocab: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def probabilities(logits: torch.Tensor, **params: float) -> np.ndarray:
    """The specification: sort, cut, renormalise, in float64."""
    given_params = SamplingParams(**params)  # type: ignore[arg-type]
    p = torch.softmax(logits.double() / given_params.temperature, 0).numpy()
    order = np.argsort(-p, kind="stable")
    allowed = np.ones(len(p), bool)
    if 0 < given_params.top_k < len(p):
        allowed[order[given_params.top_k :]] = False
        p = np.where(allowed, p, 0) / p[allowed].sum()
    if given_params.top_p < 1:
        before = np.cumsum(p[order]) - p[order]
        allowed[order[1:][before[1:] >= given_params.top_p]] = False
    allowed &= p >= given_params.min_p * p.max()
    return np.where(allowed, p, 0) / p[allowed].sum()


def draw(logits: torch.Tensor, count: int, seed: int = 7, **params: float) -> np.ndarray:
    """How often each id comes at token indices 0 to count - 1."""
    chosen: list[int] = []
    for start in range(0, count, 1000):
        rows = [row(seed, start + i, **params) for i in range(1000)]
        chosen += Sampler().sample(logits.expand(1000, -1).contiguous(), rows)
    return np.bincount(chosen, minlength=logits.shape[0])


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.2},
        {"top_k": 7, "top_p": 0.9, "min_p": 0.05, "temperature": 1.5},
    ],
)
def test_ids_come_as_often_as_their_probability_says(params: dict[str, float]) -> None:
    logits = torch.linspace(-2, 2, 12)[torch.randperm(12, generator=torch.Generator().manual_seed(3))]
    count = 100_000 if not params else 20_000
    expected = count * probabilities(logits, **{"temperature": 1.0, **params})
    counts = draw(logits, count, **params)
    assert counts[expected == 0].sum() == 0
    likely = expected > 0
    chi_square = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    freedom = likely.sum() - 1
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom)


def test_numbers_of_the_generator() -> None:
    numbers = np.array([uniform(seed, index) for seed in (0, 1, 2**63 - 1) for index in range(3000)])
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert len(np.unique(numbers)) == len(numbers)
    assert abs(numbers.mean() - 0.5) < 0.02
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.05
    assert uniform(5, 7) == uniform(5, 7)


@pytest.mark.parametrize("vocab", [1, 2, 255, 256, 257, 1000])
def test_greedy_is_the_first_of_the_largest(vocab: int) -> None:
    logits = random_logits(16, vocab)
    logits[3] = 1.0
    expected = logits.argmax(dim=1).tolist()
    expected[3] = 0
    assert Sampler().sample(logits, [SampleRow(GREEDY, 1, i) for i in range(16)]) == expected


@pytest.mark.parametrize("temperature", [1e-6, 1e-5, 1e-4, 1e-300, 5e-324])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    logits = 1e4 * random_logits(8)
    chosen = Sampler().sample(logits, [row(i, temperature=temperature) for i in range(8)])
    assert chosen == logits.argmax(dim=1).tolist()


def test_enormous_logits_and_temperatures() -> None:
    logits = torch.tensor([[3e38, -3e38, 1.0], [-3e38, -3e38, -3.1e38]])
    assert Sampler().sample(logits, [row(temperature=1e-4), row(temperature=1e-4)])[0] == 0
    assert draw(torch.tensor([1.0, 0.0, -1.0]), 1000, temperature=100.0).min() > 250


mixed = st.lists(
    st.builds(
        lambda seed, index, temperature, top_k, top_p, min_p, min_tokens: row(
            seed,
            index,
            (3, 4),
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            min_tokens=min_tokens,
            max_tokens=50,
        ),
        st.integers(0, 2**63 - 1),
        st.integers(0, 30),
        st.sampled_from([0.0, 0.3, 1.0, 2.0]),
        st.sampled_from([0, 1, 5, VOCAB, 2 * VOCAB]),
        st.sampled_from([0.0, 0.1, 0.9, 1.0]),
        st.sampled_from([0.0, 0.1, 1.0]),
        st.integers(0, 20),
    ),
    min_size=1,
    max_size=9,
)


@given(mixed, st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_each_row_of_a_mixed_batch_is_as_alone(rows: list[SampleRow], seed: int) -> None:
    logits = random_logits(len(rows), seed=seed)
    together = Sampler().sample(logits, rows)
    assert together == [Sampler().sample(logits[i : i + 1].clone(), [one])[0] for i, one in enumerate(rows)]
    assert Sampler().sample(logits.flip(0), rows[::-1]) == together[::-1]
    assert all(0 <= token < VOCAB for token in together)


@given(mixed, st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_only_what_the_parameters_allow_is_kept(rows: list[SampleRow], seed: int) -> None:
    logits = random_logits(len(rows), seed=seed)
    for i, one in enumerate(rows):
        if one.is_greedy:
            continue
        params = one.params
        weights = _weights(logits[i].numpy(), float(logits[i].max()), params.temperature)
        ids, kept = _likely(weights, params)
        weights = weights if ids is None else np.bincount(ids, kept, minlength=VOCAB)
        expected = probabilities(
            logits[i], temperature=params.temperature, top_k=params.top_k, top_p=params.top_p, min_p=params.min_p
        )
        np.testing.assert_allclose(weights / weights.sum(), expected, atol=2e-5)
        assert abs(np.count_nonzero(weights) - np.count_nonzero(expected)) <= 1  # float32 at the border


def test_a_seeded_request_among_unseeded_neighbours() -> None:
    answers = set()
    for attempt in range(20):
        chosen = []
        for index in range(10):
            logits = random_logits(1 + attempt, seed=1000 * attempt + index)
            place = index % (1 + attempt)
            logits[place] = random_logits(1, seed=index)[0]
            rows = [row(seed=attempt * 100 + i) for i in range(1 + attempt)]
            rows[place] = row(seed=42, index=index)
            chosen.append(Sampler().sample(logits, rows)[place])
        answers.add(tuple(chosen))
    assert len(answers) == 1


def test_equal_tokens_are_cut_in_order_of_their_ids() -> None:
    for params in ({"top_k": 3}, {"top_p": 0.3}):
        counts = draw(torch.zeros(10), 1000, **params)
        assert (counts[:3] > 0).all()
        assert counts[3:].sum() == 0


def test_the_least_that_is_left_is_one_token() -> None:
    logits = random_logits(3)
    rows = [row(top_p=0.0), row(top_k=1), row(min_p=1.0)]
    assert Sampler().sample(logits, rows) == logits.argmax(dim=1).tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_end_ids_wait_for_min_tokens(temperature: float) -> None:
    logits = torch.zeros(1, 10)
    logits[0, 4] = 50.0
    logits[0, 7] = 20.0
    kept = logits.clone()

    def sample(index: int) -> int:
        one = row(1, index, (4, 5, 10**6, -1), temperature=temperature, min_tokens=3, max_tokens=9)
        return Sampler().sample(logits, [one])[0]

    assert [sample(index) for index in range(5)] == [7, 7, 7, 4, 4]
    assert torch.equal(logits, kept)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_fails_alone(bad: float, temperature: float) -> None:
    logits = random_logits(4)
    rows = [row(i, temperature=temperature, top_p=0.9) for i in range(4)]
    good = Sampler().sample(logits, rows)
    logits[2, 5] = bad
    logits[2, 9] = math.nan
    assert Sampler().sample(logits, rows) == [*good[:2], NUMERICAL_ERROR, good[3]]
    logits[2] = -math.inf
    assert Sampler().sample(logits, rows) == [*good[:2], NUMERICAL_ERROR, good[3]]


def test_barred_tokens_are_never_drawn() -> None:
    logits = torch.full((VOCAB,), -math.inf)
    logits[[3, 999]] = 0.0
    counts = draw(logits, 2000)
    assert counts[3] + counts[999] == 2000
    only_end = row(1, 0, (3, 999), min_tokens=2)
    assert Sampler().sample(logits[None], [only_end]) == [NUMERICAL_ERROR]


def test_picks_agree_with_the_whole_cumulated_sum() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 255, 256, 257, 5000):
        weights = np.exp(rng.normal(0, 6, size)).astype(np.float32)
        weights[rng.random(size) < 0.5] = 0.0
        weights[-1] = weights[0] = 1.0
        sums = np.cumsum(weights, dtype=np.float64)
        for u in [0.0, 1 - 2**-53, *rng.random(300)]:
            place = _pick(weights, u)
            assert weights[place] > 0
            low, high = sums[place] - weights[place], sums[place]
            assert low - 1e-5 * sums[-1] <= u * sums[-1] <= high + 1e-5 * sums[-1]


def test_a_span_does_not_give_its_rounding_error_to_the_last_id() -> None:
    weights = np.full(512, 0.1, np.float32)
    weights[255] = weights[511] = 1e-30
    border = np.nextafter(0.5, 0)
    assert {_pick(weights, u) for u in (border, 0.5 - 1e-9, 0.5 - 1e-7, 1 - 2**-53, 1 - 1e-9)} <= {254, 256, 510}


def test_rows_must_match() -> None:
    with pytest.raises(ValueError, match="2 rows are asked for, and there are 3"):
        Sampler().sample(random_logits(3), [row(), row()])


def test_no_rows() -> None:
    assert Sampler().sample(torch.zeros(0, 5), []) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_device_gives_what_the_cpu_gives() -> None:
    logits = random_logits(6)
    rows = [row(i, i, (2,), temperature=i % 2, top_p=0.9, min_tokens=3) for i in range(6)]
    assert Sampler().sample(logits.cuda(), rows) == Sampler().sample(logits, rows)
