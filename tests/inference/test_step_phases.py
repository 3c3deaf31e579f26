"""Phases of a step, by a clock that is set by hand."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from inference.step import Phases


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    clock = SimpleNamespace(ms=0.0)
    fake = SimpleNamespace(perf_counter=lambda: clock.ms / 1000, time=lambda: 0.0)
    monkeypatch.setattr("inference.step.time", fake)
    return lambda ms: setattr(clock, "ms", ms)


def phases_of(at: Callable[[float], None], back_at: float, sampled_at: float, device_ms: float | None) -> Phases:
    """Planned by 1 ms, launched by 3; the host is back at one moment, and has the tokens at another."""
    at(0)
    phases = Phases()
    at(1)
    phases.end("schedule")
    at(3)
    phases.end("forward")
    at(back_at)
    phases.resume()
    at(sampled_at)
    phases.end("sample")
    phases.forward_took(device_ms)
    at(sampled_at + 1)
    phases.end("commit")
    return phases


@pytest.mark.parametrize(
    ("back_at", "sampled_at", "device_ms", "forward", "sample"),
    [
        (3, 5, None, 2, 2),  # the pass was over when it came back
        (3, 12, 8, 8, 3),  # 9 - 12: the device is done at 1 + 8
        (7, 12, 8, 8, 3),  # the host did something else first, and was back in time
        (10, 12, 8, 8, 2),  # it was late: a millisecond was nobody's
        (3, 12, 1, 2, 9),  # done before the launch was
        (3, 12, 99, 11, 0),  # the device's clock is not the host's
    ],
)
def test_what_was_the_device_and_what_was_sampling(
    at: Callable[[float], None],
    back_at: float,
    sampled_at: float,
    device_ms: float | None,
    forward: float,
    sample: float,
) -> None:
    phases = phases_of(at, back_at, sampled_at, device_ms)
    expected = {"schedule": 1, "forward": forward, "sample": sample, "commit": 1}
    assert phases.durations == pytest.approx(expected)
    assert phases.total == pytest.approx(sampled_at + 1)
