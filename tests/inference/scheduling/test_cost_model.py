import random
from collections.abc import Iterator

import pytest

from inference.scheduling.cost_model import CostModel, Load


def loads(seed: int) -> Iterator[Load]:
    """Decodes of many sizes, now and then with a chunk of a prompt beside them."""
    draw = random.Random(seed)
    while True:
        load = Load()
        for _ in range(draw.randint(1, 40)):
            load = load.with_span(draw.randint(10, 800), 1, samples=True)
        if draw.random() < 0.3:
            load = load.with_span(draw.randint(0, 600), draw.randint(2, 300), samples=False)
        yield load


def cost(load: Load) -> float:
    return 5.0 + 0.4 * load.tokens + 0.0003 * load.reads + 0.1 * load.samples


def learnt(count: int, noise: float = 0.0, seed: int = 0) -> CostModel:
    model, draw = CostModel(), random.Random(seed)
    for load, _ in zip(loads(seed), range(count), strict=False):
        model.observe(load, cost(load) * (1 + noise * draw.uniform(-1, 1)))
    return model


def test_a_span_reads_as_many_positions_as_attention_does() -> None:
    by_hand = sum(position + 1 for position in range(7, 12))
    assert Load().with_span(7, 5, samples=False) == Load(5, by_hand, 0)
    assert Load(1, 8, 1).with_span(11, 1, samples=True) == Load(2, 20, 2)


def test_nothing_is_predicted_before_anything_was_seen() -> None:
    assert CostModel().predict(Load(100, 1000, 10)) == 0.0


@pytest.mark.parametrize(("noise", "off"), [(0.0, 0.02), (0.2, 0.1)])
def test_loads_that_were_never_seen_are_predicted(noise: float, off: float) -> None:
    model = learnt(600, noise)
    for load, _ in zip(loads(seed=99), range(50), strict=False):
        assert model.predict(load) == pytest.approx(cost(load), rel=off)
    assert model.error < off + noise


def test_one_more_token_costs_what_the_prediction_rises_by() -> None:
    model = learnt(300)
    before, after = Load().with_span(0, 50, samples=False), Load().with_span(0, 51, samples=False)
    assert model.per_token(50) == pytest.approx(model.predict(after) - model.predict(before))


def test_no_price_is_below_zero_where_the_counts_rise_together() -> None:
    model = CostModel()
    for tokens in [1, 2, 3, 2, 1] * 40:
        model.observe(Load(tokens, 10 * tokens, tokens), 6.0 - tokens)  # more work in less time: no price explains that
    assert min(model.prices) >= 0.0


def test_it_follows_a_machine_that_became_twice_as_slow() -> None:
    model = learnt(600)
    for load, _ in zip(loads(seed=5), range(1200), strict=False):
        model.observe(load, 2 * cost(load))
    for load, _ in zip(loads(seed=6), range(20), strict=False):
        assert model.predict(load) == pytest.approx(2 * cost(load), rel=0.1)


def test_one_hiccup_changes_little() -> None:
    model = learnt(600)
    load = next(loads(seed=7))
    before = model.predict(load)
    model.observe(load, 50 * cost(load))
    assert model.predict(load) == pytest.approx(before, rel=0.05)


def test_an_iteration_that_took_no_time_teaches_nothing() -> None:
    model = learnt(50)
    before = list(model.prices)
    model.observe(Load(5, 50, 1), 0.0)
    model.observe(Load(), 3.0)
    assert (model.prices, model.observed) == (before, 50)
