"""Places in line, and when each may begin."""

from __future__ import annotations

import pytest
from support.iterations import iterate

from inference.config import SamplingParams
from inference.scheduling.blocks import BlockPool
from inference.scheduling.cost_model import Load
from inference.scheduling.kv_manager import KVManager
from inference.scheduling.line import Line, Place
from inference.scheduling.policies import make_policy
from inference.scheduling.request import Request
from inference.scheduling.scheduler import Scheduler
from inference.scheduling.waiting_queue import WaitingQueue


class Queue:
    """A scheduler whose iterations cost 10 ms, and its line."""

    def __init__(self, seats: int = 2, policy: str = "continuous", cap: int | None = None, seen: int = 300) -> None:
        self.scheduler = Scheduler(
            KVManager(BlockPool(400, 4), False), seats, 64, 400, make_policy(policy, seats, 50.0), None,
            WaitingQueue(10_000.0, cap),
        )  # fmt: skip
        for rows in (1, 2, 1, 8) * (seen // 4):
            self.scheduler.pace.costs.observe(Load(rows, 3 * rows, rows), 10.0)
        self.line = Line(self.scheduler)

    def add(self, name: str, answer: int, prompt: int = 1, user: str = "") -> None:
        self.scheduler.add(Request(name, [5] * prompt, SamplingParams(max_tokens=answer), 0, user))

    def places(self) -> list[Place]:
        plan = iterate(self.scheduler)
        return self.line.places(self.scheduler.waiting_reasons(plan))


def test_each_takes_the_place_of_the_next_who_ends() -> None:
    queue = Queue()
    for name, answer in (("long", 31), ("short", 11), ("third", 5), ("fourth", 5), ("fifth", 5)):
        queue.add(name, answer)
    places = queue.places()  # one token each was made
    assert [(p.request_id, p.position, p.reason) for p in places] == [
        ("third", 0, "no_seat"), ("fourth", 1, "behind"), ("fifth", 2, "behind"),
    ]  # fmt: skip
    assert [p.eta_ms for p in places] == pytest.approx([100.0, 160.0, 220.0], rel=0.1)


def test_answers_are_taken_to_be_as_long_as_they_were_lately() -> None:
    queue = Queue(seats=1)
    queue.add("runs", 101)
    queue.add("waits", 5)
    before = queue.places()[0].eta_ms
    for _ in range(100):
        queue.line.ended(Request("x", [5], SamplingParams(max_tokens=100), 0, output_ids=[1] * 50))
    after = queue.places()[0].eta_ms
    assert before == pytest.approx(1000.0, rel=0.1)
    assert after == pytest.approx(490.0, rel=0.1)


def test_a_static_batch_ends_with_its_slowest() -> None:
    queue = Queue(policy="static")
    for name, answer in (("long", 31), ("short", 3), ("third", 5), ("fourth", 5), ("fifth", 5)):
        queue.add(name, answer)
    etas = [place.eta_ms for place in queue.places()]
    assert etas[:2] == pytest.approx([300.0, 300.0], rel=0.1)
    assert etas[2] is None


@pytest.mark.parametrize("how", ["paused", "switching", "unknown prices"])
def test_nothing_is_said_where_nothing_is_known(how: str) -> None:
    queue = Queue(seen=8 if how == "unknown prices" else 300)
    for n in range(4):
        queue.add(f"r{n}", 50)
    iterate(queue.scheduler)
    if how == "paused":
        queue.scheduler.gate.pause()
    if how == "switching":
        queue.scheduler.switch_policy(make_policy("static", 2, 0.0))
    places = queue.places()
    assert [place.eta_ms for place in places] == [None, None]
    assert [place.position for place in places] == [0, 1]


def test_a_user_at_the_cap_holds_up_nobody() -> None:
    queue = Queue(seats=3, cap=1)
    queue.add("a1", 50, user="a")
    queue.add("b1", 20, user="b")
    queue.add("c1", 20, user="c")
    queue.add("a2", 20, user="a")
    queue.add("d1", 20, user="d")
    places = {place.request_id: place for place in queue.places()}
    assert (places["a2"].reason, places["a2"].eta_ms) == ("user_cap", None)
    assert places["d1"].eta_ms == pytest.approx(190.0, rel=0.1)


def test_far_back_a_place_is_in_hundreds() -> None:
    queue = Queue(seats=1)
    for n in range(321):
        queue.add(f"r{n}", 5)
    places = queue.places()
    assert [place.position for place in places[:100]] == list(range(100))
    assert [place.position for place in places[100:]] == [100] * 100 + [200] * 100 + [300] * 20
    assert {place.request_id for place in places} == {f"r{n}" for n in range(1, 321)}
    assert {place.reason for place in places[1:]} == {"behind"}
    queue.scheduler.gate.pause()
    assert {place.reason for place in queue.places()} == {"paused"}


def test_who_has_begun_to_answer_is_told_nothing() -> None:
    queue = Queue(seats=1)
    queue.add("runs", 50)
    queue.scheduler.add(Request("resumed", [5], SamplingParams(max_tokens=9), 0, output_ids=[7]))
    queue.add("new", 5)
    assert [(place.request_id, place.position) for place in queue.places()] == [("new", 1)]
