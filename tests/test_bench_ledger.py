"""The ledger's benchmark: which iterations count for a window, and what is told of them."""

from __future__ import annotations

import os

import pytest
from support.ledgers import record

from bench.ledger import Figure, Span, figure, report
from bench.viewers import cpu_seconds


def test_only_neighbours_within_one_window_count() -> None:
    begun = [0.0, 10.0, 22.0, 30.0, 41.0, 50.0]
    records = [record(n, t0=t0) for n, t0 in zip([1, 2, 3, 5, 6, 7], begun, strict=True)]  # the fourth is missing
    spans = [Span(0.0, 25.0, 0.5, 3000), Span(30.0, 45.0, 0.25, 4999)]
    found = figure("x", records, spans, spans)
    assert (found.steps, found.median, found.mean, found.sent) == (3, 11.0, 11.0, 7)  # 10, 12 and 11
    assert found.web == pytest.approx(0.75 / 0.040)
    with pytest.raises(ValueError, match="fell into a window"):
        figure("x", records, [Span(12.0, 21.0, 0.0, 0)], spans[:1])


def test_each_turn_is_compared_with_its_own_base() -> None:
    begun = [0.0, 10.0, 20.0, 31.0, 100.0, 120.0, 140.0, 164.0]
    records = [record(n, t0=t0) for n, t0 in zip([1, 2, 3, 4, 6, 7, 8, 9], begun, strict=True)]
    base = [Span(0.0, 10.0, 0.0, 0), Span(100.0, 120.0, 0.0, 0)]
    found = figure("x", records, [Span(20.0, 31.0, 0.0, 0), Span(140.0, 164.0, 0.0, 0)], base)
    assert found.change == pytest.approx(0.15)  # 11 to 10 and 24 to 20
    assert found.least < 0.15 < found.most


def test_the_report_has_a_row_for_each_window() -> None:
    first = Figure("no store", 100, 20.0, 25.0, 0.0, 0.0, 0.0, 0.0, 0)
    table = report([first, Figure("store", 90, 20.1, 24.5, 0.048, 0.005, -0.01, 0.02, 12)])
    assert table.splitlines()[2:] == [
        "| no store | 100 | 20.00 | 25.00 | +0.00% (+0.00% to +0.00%) | 0.0% | 0 |",
        "| store | 90 | 20.10 | 24.50 | +0.50% (-1.00% to +2.00%) | 4.8% | 12 |",
    ]
    assert len({line.count("|") for line in table.splitlines()}) == 1


def test_a_process_time_is_read_whatever_its_name_is() -> None:
    times = os.times()
    assert cpu_seconds(os.getpid()) == pytest.approx(times.user + times.system, abs=0.5)
