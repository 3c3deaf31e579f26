"""The benchmark's arithmetic: arrival times, curves, limits, what is read from records."""

from __future__ import annotations

import csv
import statistics
from itertools import pairwise

import pytest
import torch
from support.toy import VOCAB, toy_engine

from bench import gaps, load, policies, roofline, steps, waiting
from bench.limits import FOUR_BIT_BYTES, Costs, burst_limit, costs_of, stream_limit
from bench.load import Point, at_equal_latency, throughput_at
from bench.machine import Peaks
from inference.execution.models.llama import LlamaModel


def test_a_poisson_stream_begins_at_zero_and_keeps_its_rate() -> None:
    moments = list(policies.arrivals(4000, 8.0))
    between = [after - before for before, after in pairwise(moments)]
    assert moments[0] == 0.0
    assert min(between) >= 0.0
    assert statistics.mean(between) == pytest.approx(1 / 8, rel=0.05)
    assert statistics.stdev(between) == pytest.approx(1 / 8, rel=0.1)  # as exponential gaps have it
    assert moments == list(policies.arrivals(4000, 8.0))


def test_without_a_rate_all_come_at_once() -> None:
    assert list(policies.arrivals(3, None)) == [0.0, 0.0, 0.0]


def test_quantiles_of_one_and_of_many() -> None:
    assert policies.quantile([7.0], 95) == 7.0
    assert policies.quantile([3.0, 1.0, 2.0], 50) == 2.0


def test_the_trace_is_scaled_and_begun_again() -> None:
    with load.TRACE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    requests = load.trace_requests(len(rows) + 1, 1000)
    for (ids, wanted), row in zip(requests, rows, strict=False):
        assert len(ids) == max(1, int(row["ContextTokens"]) // load.PROMPT_SCALE)
        assert wanted == max(1, int(row["GeneratedTokens"]) // load.OUTPUT_SCALE)
    last, first = requests[-1], requests[0]
    assert (len(last[0]), last[1]) == (len(first[0]), first[1])


@pytest.mark.parametrize(("rate", "count"), [(0.5, 24), (4.0, 80), (100.0, 160)])
def test_a_run_has_enough_requests_and_not_too_many(rate: float, count: int) -> None:
    assert load.count_at(rate) == count


def point(policy: str, rate: float, through: float, per_token: float) -> Point:
    return Point(policy, rate, through, 0.0, 0.0, per_token)


CONTINUOUS = [point("continuous", *values) for values in ((1, 100, 0.01), (2, 200, 0.02), (4, 400, 0.06))]


def test_throughput_at_a_latency_lies_on_the_line_between_two_rates() -> None:
    assert throughput_at(CONTINUOUS, 0.03) == (pytest.approx(250.0), False)
    assert throughput_at(CONTINUOUS, 0.02) == (pytest.approx(200.0), False)


def test_a_curve_that_stays_below_gives_the_least_it_can_do() -> None:
    assert throughput_at(CONTINUOUS, 0.5) == (400, True)


def test_a_curve_that_is_never_so_fast_gives_nothing() -> None:
    assert throughput_at(CONTINUOUS, 0.005) == (0.0, False)


def test_policies_are_compared_at_static_s_points() -> None:
    points = [*CONTINUOUS, point("static", 1, 50, 0.03), point("static", 2, 80, 0.9), point("static", 0.5, 9, 0.001)]
    found = at_equal_latency(points)
    assert [(one.static, one.continuous, one.is_least) for one in found] == [(50, 250.0, False), (80, 400, True)]
    assert found[0].factor == pytest.approx(5.0)


def test_a_run_puts_every_request_through() -> None:
    requests = [([25, 26, 27], 4), ([30] * 9, 2), ([40], 7)]
    result = policies.run(toy_engine(), requests, 500.0)
    assert sorted(result.made.values()) == [2, 4, 7]
    assert result.arrived.keys() == result.ended.keys() == result.released.keys()
    assert all(seconds > 0 for seconds in result.latencies)
    assert result.tokens_per_second == pytest.approx(13 / result.seconds)
    row = policies.table_row("continuous", result, 8)
    assert row["padding_waste"] == 0


def tiny_model() -> LlamaModel:
    weights = roofline.RandomWeights(torch.float32, torch.device("cpu"))
    return LlamaModel(roofline.TINY, weights, torch.float32, torch.device("cpu"), 512)  # type: ignore[arg-type]


def test_costs_are_those_of_the_loaded_model() -> None:
    costs = costs_of(tiny_model())
    assert costs is not None
    layer = 64 * (64 + 2 * 32) + 64 * 64 + 64 * 256 + 128 * 64
    assert costs.layer_weights == 2 * layer
    assert costs.head_weights == 512 * 64
    assert costs.prompt_flop == 4 * layer
    assert costs.output_flop == 4 * layer + 2 * 512 * 64
    assert costs.kv_bytes == 2 * 2 * 2 * 16 * 4
    assert costs.step_bytes(3, 10) == 4 * (2 * layer + 512 * 64) + 3 * 10 * costs.kv_bytes


def test_other_models_have_no_costs() -> None:
    assert costs_of(object()) is None


COSTS = Costs(1000, 100, 8, 4, torch.bfloat16, four_bit_weights=800)
PEAKS = Peaks(bfloat16=22_000.0, float32=1.0, read=1100.0)


def test_four_bits_are_read_by_few_rows_only() -> None:
    assert COSTS.step_bytes(8) == 800 * FOUR_BIT_BYTES + 200 * 2 + 100 * 2
    assert COSTS.step_bytes(9) == COSTS.step_bytes(1, four_bits=False) == 2200


def test_limits() -> None:
    assert burst_limit(COSTS, PEAKS, [([1] * 11, 10)]) == pytest.approx(10 * 22_000 / (11 * 2000 + 10 * 2200))
    assert stream_limit(COSTS, PEAKS, four_bits=False) == pytest.approx(0.5)
    assert stream_limit(COSTS, PEAKS) == pytest.approx(1.0)


def test_a_step_s_rest_is_what_its_phases_leave() -> None:
    step = steps.measure_alone(toy_engine(kv_blocks=4096), 3, 5, VOCAB)
    assert step.requests == 3
    assert step.context >= steps.PROMPT
    assert step.rest > 0
    assert step.total == pytest.approx(sum(step.phases.values()) + step.rest)
    assert 0 < step.overhead < 1


def test_steps_leave_the_engine_idle() -> None:
    engine = toy_engine(kv_blocks=4096)
    steps.measure_alone(engine, 2, 3, VOCAB)
    assert not engine.has_work


def test_no_full_iteration_is_an_error() -> None:
    with pytest.raises(ValueError, match="5 requests"):
        steps.step_of([], 5)


def test_a_decode_batch_needs_blocks_enough() -> None:
    cache = tiny_model().new_cache(4, 16)
    batch = steps.decode_batch(2, 20, cache)
    assert sorted(batch.block_tables.flatten().tolist()) == [0, 1, 2, 3]
    assert batch.slots.tolist() == [int(table[1]) * 16 + 3 for table in batch.block_tables]
    with pytest.raises(ValueError, match="2 requests of 3 blocks do not fit 4 blocks"):
        steps.decode_batch(2, 33, cache)


def test_parts_of_the_forward_pass_have_limits() -> None:
    model = tiny_model()
    costs = costs_of(model)
    assert costs is not None
    parts = steps.forward_parts(model, 2, 40, costs, Peaks(1e9, 1e9, 1e9), 2)
    assert [part.name for part in parts] == ["layers", "attention", "head"]
    assert parts[1].limit_ms == pytest.approx(1e3 * 2 * 40 * max(costs.kv_bytes, costs.attention_flop) / 1e9)


def test_newcomers_are_told_from_streams() -> None:
    engine = toy_engine(kv_blocks=2048, max_num_seqs=32, max_num_batched_tokens=512, prefix_caching=False)
    found = gaps.measure(engine, None, 0.3, VOCAB, every=0.1)
    assert found.newcomers == 3
    assert found.first_token is not None
    assert found.first_token > 0
    assert found.p50 <= found.p99 <= found.longest
    assert not engine.has_work


def test_as_many_wait_after_iterations_as_before() -> None:
    line = waiting.Line(30)
    line.milliseconds(100)
    assert len(line._scheduler.waiting) == 30
    assert len(line._scheduler.running) > 0.9 * waiting.SEATS


def test_the_roofline_of_a_tiny_shape() -> None:
    rows = roofline.measure(roofline.TINY, torch.device("cpu"), 32, 64, 2)
    assert [row.unit for row in rows] == ["GB/s"] * 3 + ["TFLOP/s"]
    assert all(row.share > 0 for row in rows)
