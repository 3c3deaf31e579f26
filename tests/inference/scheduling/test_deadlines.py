from math import inf

from inference.config import SamplingParams
from inference.scheduling.deadlines import Deadlines
from inference.scheduling.request import Request, RequestState


def request(name: str = "r", arrived: float = 0.0) -> Request:
    return Request(name, [7], SamplingParams(), seed=0, arrived_ms=arrived)


def names(deadlines: Deadlines, now: float) -> list[str]:
    return [one.request_id for one, _ in deadlines.expired(now)]


def started(deadlines: Deadlines, one: Request, now: float) -> None:
    one.started_ms, one.state = now, RequestState.RUNNING
    deadlines.started(one, now)


def test_a_request_may_wait_for_so_long() -> None:
    deadlines = Deadlines(1000.0, None, None)
    early, late = request("early"), request("late", 500.0)
    deadlines.arrived(early)
    deadlines.arrived(late)
    assert deadlines.next_ms() == 1000.0
    assert names(deadlines, 999.0) == []
    assert names(deadlines, 1000.0) == ["early"]
    assert deadlines.next_ms() == 1500.0


def test_one_that_runs_waits_no_more() -> None:
    deadlines = Deadlines(1000.0, 5000.0, None)
    one = request()
    deadlines.arrived(one)
    started(deadlines, one, 700.0)
    one.state = RequestState.WAITING  # preempted: it has run all the same
    assert names(deadlines, 5699.0) == []
    assert names(deadlines, 5700.0) == ["r"]


def test_one_that_ran_elsewhere_has_not_waited_all_its_age() -> None:
    deadlines = Deadlines(1000.0, None, 9000.0)
    taken_up = request(arrived=-5000.0)
    taken_up.output_ids = [7]
    deadlines.arrived(taken_up)
    assert names(deadlines, 0.0) == []
    assert names(deadlines, 4000.0) == ["r"]


def test_all_in_all() -> None:
    deadlines = Deadlines(None, None, 2000.0)
    one = request(arrived=-1500.0)  # it has waited elsewhere
    deadlines.arrived(one)
    started(deadlines, one, 100.0)
    assert names(deadlines, 500.0) == ["r"]


def test_it_expires_once_and_is_told_why() -> None:
    deadlines = Deadlines(1000.0, None, 1000.0)
    deadlines.arrived(request())
    ((_, sentence),) = deadlines.expired(3000.0)
    assert "waited for 1 s" in sentence
    assert names(deadlines, 9000.0) == []


def test_one_that_has_ended_never_expires() -> None:
    deadlines = Deadlines(1000.0, None, None)
    one = request()
    deadlines.arrived(one)
    one.state = RequestState.FINISHED
    assert deadlines.next_ms() == inf
    assert names(deadlines, 9000.0) == []


def test_without_limits_nothing_is_kept() -> None:
    deadlines = Deadlines(None, None, None)
    deadlines.arrived(request())
    assert (deadlines.next_ms(), len(deadlines._heap)) == (inf, 0)


def test_entries_of_the_ended_do_not_pile_up() -> None:
    deadlines = Deadlines(1e9, 1e9, 1e9)
    for i in range(20_000):
        one = request(str(i))
        deadlines.arrived(one)
        started(deadlines, one, 1.0)
        one.state = RequestState.FINISHED
    assert len(deadlines._heap) <= 1100
