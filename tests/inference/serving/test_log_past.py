"""What a log tells of where a request's time went before another engine has it."""

from types import SimpleNamespace

import pytest

from inference.scheduling.receipt import Past
from inference.serving.logs import Log
from inference.serving.lost import EndedRuns, Lost
from inference.serving.messages import Delta


def entry(epoch, kind, *more):
    return (f"{epoch}-{more[0].seq if kind == 'delta' else 0}".encode(),
            [kind.encode(), *(one.encode() for one in more)])  # fmt: skip


def claim(epoch, at):
    return (f"{epoch}-0".encode(), [b"claim", b"token", b"engine", b"consumer", b"at", str(at).encode()])


def delta(seq, at, started=0.0):
    return Delta("r", seq, "x", [seq], seq, created_at=at, started_at=started)


def test_nobody_had_it():
    assert Log.of([(b"0-1", [b"entry", b"1-1"])]).past(100.0, 105.0) is None


def test_claimed_and_then_nothing():
    log = Log.of([(b"0-1", [b"entry", b"1-1"]), claim(1, 101.0)])
    assert log.past(100.0, 105.0) == Past(1000.0, 0.0, 0.0, 4000.0, None)


def test_a_claim_of_an_older_version_tells_no_time():
    log = Log.of([(b"1-0", [b"claim", b"token", b"engine", b"consumer"])])
    assert (log.claims, log.past(100.0, 105.0)) == (1, None)


def test_an_answer_was_under_way():
    log = Log.of([claim(1, 100.5), entry(1, "delta", delta(1, 103.0, 101.0)), entry(1, "delta", delta(2, 104.0))])
    assert log.past(100.0, 110.0) == Past(1000.0, 2000.0, 1000.0, 6000.0, 3000.0)


def test_it_was_taken_over_before():
    log = Log.of(
        [
            claim(1, 100.5),
            entry(1, "delta", delta(1, 103.0, 101.0)),
            claim(2, 106.0),
            entry(2, "delta", delta(2, 107.0)),
            entry(2, "delta", delta(3, 107.5)),
        ]
    )
    past = log.past(100.0, 110.0)
    assert past == Past(1000.0, 2000.0, 500.0, 6500.0, 3000.0)
    assert past.total == pytest.approx(10_000.0)


def test_clocks_that_disagree_make_nothing_negative():
    log = Log.of([claim(1, 90.0), entry(1, "delta", delta(1, 95.0, 96.0))])
    past = log.past(100.0, 94.0)
    assert min(past.earlier, past.prefill, past.decode, past.stalled, past.ttft) >= 0


EMPTY = Log.of([(b"0-1", [b"entry", b"1-1"])])


def test_the_broker_lost_one_that_waited():
    """It went on waiting: what has gone by since it was put back is no part of this."""
    assert EMPTY.past(100.0, 105.0, Lost(104.0)) == Past(4000.0, 0.0, 0.0, 0.0, None)


def test_the_broker_lost_an_answer():
    """All that was done from its begin on was done for nothing; when its reader had a first word does not change."""
    assert EMPTY.past(100.0, 105.0, Lost(104.0, 101.0, 102.5)) == Past(1000.0, 0.0, 0.0, 4000.0, 2500.0)
    assert EMPTY.past(0.0, 105.0, Lost(104.0, 101.0)) == Past(0.0, 0.0, 0.0, 4000.0, None)


def test_the_engine_that_had_it_after_that_was_lost_too():
    log = Log.of([claim(1, 104.5), entry(1, "delta", delta(1, 108.0, 106.0)), entry(1, "delta", delta(2, 109.0))])
    past = log.past(100.0, 112.0, Lost(104.0, 101.0, 102.5))
    assert past == Past(1000.0, 2000.0, 1000.0, 8000.0, 2500.0)
    assert past.total == pytest.approx(12_000.0)
    assert log.past(100.0, 112.0, Lost(104.0)) == log.past(100.0, 112.0)


def test_clocks_that_disagree_lose_nothing_below_zero():
    for lost in (Lost(90.0), Lost(90.0, 80.0, 85.0), Lost(200.0), Lost(200.0, 150.0, 160.0)):
        for log in (EMPTY, Log.of([claim(1, 101.0)])):
            past = log.past(100.0, 105.0, lost)
            assert min(past.earlier, past.prefill, past.decode, past.stalled, past.ttft or 0.0) >= 0
            assert past.total <= 15_000.0


def test_the_engine_that_ran_it_knows_better():
    ended = EndedRuns()
    assert ended.known("a", Lost(9.0, 4.0, 5.0)) == Lost(9.0, 4.0, 5.0)
    for started, first in ((3.0, 6.0), (7.0, 8.0)):
        ended.keep(SimpleNamespace(request_id="a", started_at=started, first_token_at=first))
    ended.keep(SimpleNamespace(request_id="b", started_at=0.0, first_token_at=0.0))
    assert ended.known("a", Lost(9.0)) == Lost(9.0, 3.0, 6.0)
    assert ended.known("a", Lost(9.0, 4.0, 5.0)) == Lost(9.0, 3.0, 5.0)
    assert ended.known("b", Lost(9.0)) == Lost(9.0)
