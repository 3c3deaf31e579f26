"""Draws belong to (seed, token index, id): well distributed, independent, and deaf to rounding."""

from __future__ import annotations

import math

import numpy as np
import pytest

from inference.execution.randomness import SPAN, Noise, _spans

FLAT = np.ones(8, np.float32)


def philox(seed: int, index: int, kind: int, first: int, count: int) -> np.ndarray:
    """The numbers by NumPy's own way to name a place in the stream."""
    counter = (index << 128) | (kind << 64) | (first // 4)
    return np.random.Philox(key=seed, counter=counter).random_raw(count)


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
@pytest.mark.parametrize(("index", "first", "count"), [(0, 0, 256), (7, 256, 3), (2**40, 49152, 256)])
def test_waiting_times_are_those_of_the_counter(seed: int, index: int, first: int, count: int) -> None:
    noise = Noise()
    noise.waits(5, 5, 1, 512, 77)  # what was drawn before does not matter
    bits = philox(seed, index, 1, first, count) >> np.uint64(12)
    np.testing.assert_array_equal(noise.waits(seed, index, 1, first, count), -np.log((bits + 0.5) / 2**52))


def test_waiting_times_are_exponential() -> None:
    waits = np.sort(
        np.concatenate([Noise().waits(seed, index, 1, 0, 512) for seed in range(10) for index in range(10)])
    )
    assert waits[0] > 0
    assert math.isfinite(waits[-1])
    steps = np.arange(len(waits)) / len(waits)
    distance = np.abs(-np.expm1(-waits) - steps).max()
    assert distance < 1.95 / math.sqrt(len(waits))  # Kolmogorov and Smirnov, one in a thousand


def dependence(pairs: list[tuple[int, int]]) -> float:
    """Chi-square of a table of pairs against independent uniform ones, in standard deviations."""
    table = np.zeros((8, 8))
    np.add.at(table, tuple(np.array(pairs).T), 1)
    expected = len(pairs) / 64
    return (((table - expected) ** 2 / expected).sum() - 63) / math.sqrt(2 * 63)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("the next seed", lambda seed, index: (seed + 1, index)),
        ("the next token", lambda seed, index: (seed, index + 1)),
        ("both", lambda seed, index: (seed + 1, index + 1)),
        ("one for the other", lambda seed, index: (index + 1000, seed)),
        ("another high bit", lambda seed, index: (seed | 1 << 62, index)),
    ],
)
def test_neighbours_are_independent(name: str, other) -> None:
    noise = Noise()
    places = [(seed, index) for seed in range(80) for index in range(80)]
    pairs = [(noise.pick(FLAT, None, *place), noise.pick(FLAT, None, *other(*place))) for place in places]
    assert abs(dependence(pairs)) < 4, name


def test_the_noise_of_spans_and_of_ids_is_independent() -> None:
    noise = Noise()
    spans = np.concatenate([noise.waits(3, index, 0, 0, 64) for index in range(200)])
    ids = np.concatenate([noise.waits(3, index, 1, 0, 64) for index in range(200)])
    assert abs(np.corrcoef(spans, ids)[0, 1]) < 0.03
    later = np.concatenate([noise.waits(3, index, 1, 64, 64) for index in range(200)])
    assert abs(np.corrcoef(ids, later)[0, 1]) < 0.03


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 1000])
def test_what_has_no_weight_is_never_picked(size: int) -> None:
    rng = np.random.default_rng(size)
    noise = Noise()
    for index in range(200):
        weights = np.where(rng.random(size) < 0.3, rng.random(size), 0).astype(np.float32)
        weights[rng.integers(size)] = 1e-40  # a denormal number is a weight as well
        assert weights[noise.pick(weights, None, 1, index)] > 0


def test_a_single_weight_is_picked_however_small() -> None:
    weights = np.zeros(1000, np.float32)
    weights[700] = np.float32(1e-45)
    assert {Noise().pick(weights, None, 1, index) for index in range(50)} == {700}


def test_leaving_out_what_has_no_weight_changes_nothing() -> None:
    """A token is the same whether barred ids are there with weight 0 or not there at all."""
    rng = np.random.default_rng(1)
    noise = Noise()
    for index in range(300):
        weights = np.zeros(2000, np.float32)
        ids = np.sort(rng.choice(2000, rng.integers(1, 40), replace=False))
        weights[ids] = rng.random(len(ids)) + 0.01
        assert ids[noise.pick(weights[ids], ids, 9, index)] == noise.pick(weights, None, 9, index)


def test_spans_of_ids() -> None:
    ids = np.array([0, 255, 256, 5 * SPAN + 3, 5 * SPAN + 9, 9 * SPAN])
    starts, spans = _spans(ids)
    assert starts.tolist() == [0, 2, 3, 5]
    assert spans.tolist() == [0, 1, 5, 9]
    starts, spans = _spans(np.array([700]))
    assert (starts.tolist(), spans.tolist()) == ([0], [2])
