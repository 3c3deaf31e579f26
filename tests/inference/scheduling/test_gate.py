"""When an iteration may begin."""

from __future__ import annotations

from math import inf

from inference.scheduling.gate import Gate


def tried(gate: Gate, now: float) -> str | None:
    """Why none begins now; None: one has begun."""
    if (why := gate.why_closed(now)) is None:
        gate.begin(now)
    return why


def test_an_open_gate_is_in_nobodys_way() -> None:
    gate = Gate()
    assert [tried(gate, now) for now in (0.0, 0.0, 5.0)] == [None] * 3
    assert gate.opens_at(7.0) == 7.0


def test_paused_it_opens_as_often_as_was_granted() -> None:
    gate = Gate()
    gate.pause()
    assert (gate.opens_at(1.0), tried(gate, 1.0)) == (inf, "the engine is paused")
    gate.grant()
    gate.grant()
    assert gate.opens_at(2.0) == 2.0
    assert [tried(gate, 2.0) for _ in range(3)] == [None, None, "the engine is paused"]
    gate.resume()
    assert tried(gate, 3.0) is None


def test_grants_do_not_outlive_a_pause_or_the_last_request() -> None:
    gate = Gate()
    gate.pause()
    gate.grant()
    gate.pause()
    assert gate.opens_at(1.0) == inf
    gate.grant()
    gate.forget_grants()
    assert gate.opens_at(1.0) == inf


def test_slow_counts_from_the_begin_of_one_iteration_to_the_next() -> None:
    gate = Gate()
    gate.slow_ms = 100.0
    assert tried(gate, 1000.0) is None
    assert gate.opens_at(1001.0) == 1100.0
    assert tried(gate, 1099.0) == "the engine runs slowly, an iteration every 100 ms"
    assert gate.is_resting
    assert tried(gate, 1100.0) is None
    assert not gate.is_resting
    assert gate.opens_at(1300.0) == 1300.0
    gate.slow_ms = 0.0
    assert tried(gate, 1101.0) is None


def test_paused_counts_before_slow_and_a_step_does_not_wait() -> None:
    gate = Gate()
    gate.slow_ms = 100.0
    assert tried(gate, 0.0) is None
    gate.pause()
    assert tried(gate, 1.0) == "the engine is paused"
    assert not gate.is_resting
    gate.grant()
    assert tried(gate, 2.0) is None


def test_a_grant_is_kept_until_somebody_has_used_it() -> None:
    gate = Gate()
    gate.pause()
    gate.grant()
    assert [gate.why_closed(1.0) for _ in range(3)] == [None] * 3
    assert tried(gate, 2.0) is None
    assert gate.opens_at(3.0) == inf
