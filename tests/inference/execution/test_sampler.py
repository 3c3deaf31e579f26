"""Each row is sampled as if it were alone, and as often as its probabilities say."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.gpu import needs_gpu

from inference.config import SamplingParams
from inference.execution.sampler import NO_TOKEN, NUMERICAL_ERROR, Sampled, Sampler, SampleRow
from inference.scheduling.token_counts import TokenCounts

GREEDY = SamplingParams(temperature=0.0)
VOCAB = 1000


def row(
    seed: int = 1,
    index: int = 0,
    end_ids: tuple[int, ...] = (),
    counts: TokenCounts | None = None,
    allowed: np.ndarray | None = None,
    **params: object,
) -> SampleRow:
    return SampleRow(SamplingParams.from_mapping(params), seed, index, end_ids, counts, allowed)


def sample(logits: torch.Tensor, rows: list[SampleRow]) -> list[int]:
    return [token.token_id for token in Sampler().sample(logits, rows)]


def random_logits(rows: int, vocab: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def probabilities(logits: torch.Tensor, params: SamplingParams) -> np.ndarray:
    """The specification: softmax, sort, cut, renormalise, in float64."""
    p = torch.softmax(logits.double() / params.temperature, 0).numpy()
    order = np.argsort(-p, kind="stable")
    if params.top_k:
        p[order[params.top_k :]] = 0
        p /= p.sum()
    if params.top_p < 1:
        before = np.cumsum(p[order]) - p[order]
        p[order[1:][before[1:] >= params.top_p]] = 0
    p[p < params.min_p * p.max()] = 0
    return p / p.sum()


def draw(logits: torch.Tensor, count: int, seeds: bool = False, **params: object) -> np.ndarray:
    """How often each id comes at token indices 0 to count - 1 of one seed, or at index 0 of so many seeds."""
    parameters, chosen = SamplingParams.from_mapping(params), []
    for start in range(0, count, 1000):
        numbers = range(start, start + 1000)
        rows = [SampleRow(parameters, i, 0) if seeds else SampleRow(parameters, 7, i) for i in numbers]
        chosen += sample(logits.expand(1000, -1), rows)
    return np.bincount(chosen, minlength=logits.shape[0])


def deviations(counts: np.ndarray, expected: np.ndarray) -> float:
    """Chi-square in standard deviations from its mean; what is expected less than 5 times is one class."""
    assert counts[expected == 0].sum() == 0
    rare = expected < 5
    counts, expected = (np.append(x[~rare], x[rare].sum()) for x in (counts, expected))
    counts, expected = counts[expected > 0], expected[expected > 0]
    freedom = len(expected) - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


def spread_logits() -> torch.Tensor:
    """Likely ids in three spans, some at a border, among many that seldom come."""
    logits = torch.full((600,), -4.0)
    logits[[0, 3, 100, 255, 256, 400, 511, 512, 513, 560, 599]] = torch.linspace(-2, 2, 11)
    return logits


@pytest.mark.parametrize(
    ("draws", "params"),
    [
        (100_000, {"temperature": 0.7}),
        (100_000, {"top_k": 9}),
        (100_000, {"top_p": 0.8}),
        (100_000, {"min_p": 0.05}),
        (40_000, {"top_k": 60, "top_p": 0.9, "min_p": 0.01, "temperature": 1.5}),
    ],
)
def test_ids_come_as_often_as_their_probability_says(draws: int, params: dict[str, float]) -> None:
    """Half of the draws are one request's tokens, half the first tokens of consecutive seeds."""
    logits, count = spread_logits(), draws // 2
    expected = count * probabilities(logits, SamplingParams.from_mapping(params))
    of_indices, of_seeds = draw(logits, count, **params), draw(logits, count, seeds=True, **params)
    for counts, times in ((of_indices, 1), (of_seeds, 1), (of_indices + of_seeds, 2)):
        assert abs(deviations(counts, times * expected)) < 4


@pytest.mark.parametrize(("shift", "count", "most"), [(1e-6, 20_000, 3), (1e-3, 6000, 30)])
def test_rounding_does_not_reach_the_tokens(shift: float, count: int, most: int) -> None:
    """Logits that differ a little give other tokens only where two were as close as that, for all that the cumulated
    sum of thousands of probabilities moves."""
    logits = random_logits(1, 5000, seed=5)[0]
    shifted = logits + shift * torch.randn(5000, generator=torch.Generator().manual_seed(6)).sign()
    parameters = [SamplingParams(), SamplingParams(top_p=0.95), SamplingParams(top_k=50, min_p=0.01)]
    changed = 0
    for start in range(0, count, 1000):
        rows = [SampleRow(parameters[i % 3], 11, i) for i in range(start, start + 1000)]
        before, after = (sample(x.expand(1000, -1), rows) for x in (logits, shifted))
        assert len(set(before)) > 100
        changed += sum(a != b for a, b in zip(before, after, strict=True))
    assert changed <= most


@pytest.mark.parametrize("vocab", [1, 2, 255, 256, 257, 1000])
def test_greedy_is_the_first_of_the_largest(vocab: int) -> None:
    logits = random_logits(16, vocab)
    logits[3] = 1.0
    expected = logits.argmax(dim=1).tolist()
    expected[3] = 0
    assert sample(logits, [SampleRow(GREEDY, 1, i) for i in range(16)]) == expected


@pytest.mark.parametrize("temperature", [1e-6, 1e-5, 1e-4, 1e-300, 5e-324])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    logits = 1e4 * random_logits(8)
    assert sample(logits, [row(i, temperature=temperature) for i in range(8)]) == logits.argmax(dim=1).tolist()


def test_enormous_logits_and_temperatures() -> None:
    logits = torch.tensor([[3e38, -3e38, 1.0], [-3e38, -3e38, -3.1e38]])
    assert sample(logits, [row(temperature=1e-4), row(temperature=1e-4)])[0] == 0
    assert draw(torch.tensor([1.0, 0.0, -1.0]), 1000, temperature=100.0).min() > 250


def mask(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(2**31), 2**31, -(-VOCAB // 32)).astype(np.int32)


id_lists = st.lists(st.integers(0, VOCAB - 1), max_size=30)
mixed = st.lists(
    st.builds(
        row,
        st.integers(0, 2**63 - 1),
        st.integers(0, 30),
        st.just((3, 4)),
        st.builds(TokenCounts, id_lists, id_lists),
        st.none() | st.builds(mask, st.integers(0, 99)),
        temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
        top_k=st.sampled_from([0, 1, 5, VOCAB, 2 * VOCAB]),
        top_p=st.sampled_from([0.0, 0.1, 0.9, 1.0]),
        min_p=st.sampled_from([0.0, 0.1, 1.0]),
        min_tokens=st.integers(0, 20),
        repetition_penalty=st.sampled_from([1.0, 1.0, 2.0, 0.5]),
        presence_penalty=st.sampled_from([0.0, 0.0, 1.0]),
        frequency_penalty=st.sampled_from([0.0, 0.0, -0.5]),
        logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100), max_size=3),
        logprobs=st.sampled_from([None, None, 0, 5]),
    ),
    min_size=1,
    max_size=9,
)


@given(mixed, st.integers(0, 1000))
@settings(max_examples=100, deadline=None)
def test_each_row_of_a_mixed_batch_is_as_alone(rows: list[SampleRow], seed: int) -> None:
    """To the last bit of its logprobs."""
    logits = random_logits(len(rows), seed=seed)
    kept = logits.clone()
    together = Sampler().sample(logits, rows)
    assert together == [Sampler().sample(logits[i : i + 1].clone(), [one])[0] for i, one in enumerate(rows)]
    assert Sampler().sample(logits.flip(0), rows[::-1]) == together[::-1]
    assert all(0 <= token.token_id < VOCAB for token in together)
    assert torch.equal(logits, kept)


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
            chosen.append(sample(logits, rows)[place])
        answers.add(tuple(chosen))
    assert len(answers) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_penalty_stays_in_its_row(temperature: float) -> None:
    """A with repetition 2.0 and B without, in both orders."""
    logits = random_logits(1).expand(2, -1)
    best = logits[0].topk(20).indices.tolist()
    penalised = row(1, 0, (), TokenCounts(best), temperature=temperature, repetition_penalty=2.0)
    plain = row(1, 0, temperature=temperature)
    alone = [sample(logits[:1], [one])[0] for one in (penalised, plain)]
    assert alone[0] != alone[1]
    assert sample(logits, [penalised, plain]) == alone
    assert sample(logits, [plain, penalised]) == alone[::-1]


def answer(counts: TokenCounts, first: int, last: int, **params: object) -> list[int]:
    """Greedy tokens at indices first .. last - 1, counted as they come."""
    tokens = []
    for index in range(first, last):
        tokens += sample(random_logits(1, 50, seed=0), [row(1, index, (), counts, temperature=0, **params)])
        counts.push(tokens[-1])
    return tokens


@pytest.mark.parametrize("params", [{"repetition_penalty": 5.0}, {"presence_penalty": 1.0, "frequency_penalty": 0.6}])
def test_penalties_at_every_step_and_taken_up_again(params: dict[str, float]) -> None:
    """The same logits each time, so that only what was counted can change the token."""
    prompt = random_logits(1, 50, seed=0)[0].topk(3).indices.tolist()
    whole = answer(TokenCounts(prompt), 0, 12, **params)
    counts_prompt = "repetition_penalty" in params
    assert (whole[0] != prompt[0]) == counts_prompt
    assert len(set(whole)) > 3
    for cut in (1, 5, 11):
        again = answer(TokenCounts(prompt, whole[:cut]), cut, 12, **params)
        assert whole[:cut] + again == whole


def test_equal_tokens_are_cut_in_order_of_their_ids() -> None:
    for params in ({"top_k": 3}, {"top_p": 0.3}):
        counts = draw(torch.zeros(10), 1000, **params)
        assert (counts[:3] > 0).all()
        assert counts[3:].sum() == 0


def test_the_least_that_is_left_is_one_token() -> None:
    logits = random_logits(3)
    assert sample(logits, [row(top_p=0.0), row(top_k=1), row(min_p=1.0)]) == logits.argmax(dim=1).tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_end_ids_wait_for_min_tokens(temperature: float) -> None:
    logits = torch.zeros(1, 10)
    logits[0, 4] = 50.0
    logits[0, 7] = 20.0

    def sample_at(index: int) -> int:
        one = row(1, index, (4, 5, 10**6, -1), temperature=temperature, min_tokens=3, max_tokens=9)
        return sample(logits, [one])[0]

    assert [sample_at(index) for index in range(5)] == [7, 7, 7, 4, 4]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_holds_the_tokens(temperature: float) -> None:
    logits = random_logits(200)
    rows = [row(i, 0, (), None, mask(i), temperature=temperature) for i in range(200)]
    for token, one in zip(sample(logits, rows), rows, strict=True):
        assert one.allowed is not None
        assert one.allowed[token // 32] >> token % 32 & 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_fails_alone(bad: float, temperature: float) -> None:
    logits = random_logits(4)
    rows = [row(i, temperature=temperature, top_p=0.9, logprobs=2, logit_bias={5: 1}) for i in range(4)]
    good = Sampler().sample(logits, rows)
    failed = [*good[:2], Sampled(NUMERICAL_ERROR), good[3]]
    logits[2, 5] = bad
    logits[2, 9] = math.nan
    assert Sampler().sample(logits, rows) == failed
    logits[2] = -math.inf
    assert Sampler().sample(logits, rows) == failed


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_whose_request_bars_everything_fails_alone(temperature: float) -> None:
    logits = random_logits(3)
    nothing = np.zeros(-(-VOCAB // 32), np.int32)
    rows = [row(i, temperature=temperature, logprobs=1) for i in range(3)]
    good = Sampler().sample(logits, rows)
    rows[1] = row(1, 0, (), None, nothing, temperature=temperature, logprobs=1)
    assert Sampler().sample(logits, rows) == [good[0], Sampled(NO_TOKEN), good[2]]


def test_barred_tokens_are_never_drawn() -> None:
    logits = torch.full((VOCAB,), -math.inf)
    logits[[3, 999]] = 0.0
    counts = draw(logits, 2000)
    assert counts[3] + counts[999] == 2000
    assert sample(logits[None], [row(1, 0, (3, 999), min_tokens=2)]) == [NO_TOKEN]


def test_rows_must_match() -> None:
    with pytest.raises(ValueError, match="2 rows are asked for, and there are 3"):
        Sampler().sample(random_logits(3), [row(), row()])


def test_no_rows() -> None:
    assert Sampler().sample(torch.zeros(0, 5), []) == []


@needs_gpu
def test_a_device_gives_what_the_cpu_gives() -> None:
    logits = random_logits(6)
    rows = [row(i, i, (2,), temperature=i % 2, top_p=0.9, min_tokens=3, logprobs=i % 3) for i in range(6)]
    assert Sampler().sample(logits.cuda(), rows) == Sampler().sample(logits, rows)
