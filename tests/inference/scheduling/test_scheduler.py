from itertools import count
from typing import Any

import pytest
from support.iterations import iterate

from inference.config import SamplingParams
from inference.scheduling.blocks import BlockPool
from inference.scheduling.kv_manager import KVManager
from inference.scheduling.plan import Schedule
from inference.scheduling.request import Request, RequestRefused, RequestState
from inference.scheduling.scheduler import Scheduler

names = count()


def request(prompt: int, answer: int = 8, name: str = "") -> Request:
    return Request(name or f"request-{next(names)}", [7] * prompt, SamplingParams(max_tokens=answer), seed=0)


def scheduler(blocks: int = 100, block_size: int = 4, seats: int = 8, budget: int = 64, **more: Any) -> Scheduler:
    return Scheduler(KVManager(BlockPool(blocks, block_size)), seats, budget, 4096, **more)


def added(to: Scheduler, *requests: Request) -> tuple[Request, ...]:
    for one in requests:
        to.add(one)
    return requests


def shape(plan: Schedule) -> list[tuple[int, int, bool]]:
    return [(row.start, row.num_tokens, row.samples) for row in plan.rows]


def test_prefill_then_decode_then_gone() -> None:
    one = scheduler()
    added(one, request(5, answer=3))
    assert [shape(iterate(one)) for _ in range(4)] == [[(0, 5, True)], [(5, 1, True)], [(6, 1, True)], []]
    assert not one.has_work
    assert one.kv.pool.free_count == 100


def test_a_waiting_request_joins_in_the_iteration_after_one_left() -> None:
    one = scheduler(seats=2)
    short, long, third = added(one, request(3, 2), request(3, 9), request(4, 5))
    iterate(one)
    assert [row.request for row in iterate(one).rows] == [short, long]
    assert shape(iterate(one)) == [(4, 1, True), (0, 4, True)]
    assert third.seat == 0, "the lowest free seat"


def test_chunks_of_a_long_prompt_run_beside_decodes() -> None:
    one = scheduler(budget=8, prefill_chunk=8)
    added(one, request(3), request(20))
    assert [shape(iterate(one)) for _ in range(5)] == [
        [(0, 3, True), (0, 5, False)],
        [(3, 1, True), (5, 7, False)],
        [(4, 1, True), (12, 7, False)],
        [(5, 1, True), (19, 1, True)],
        [(6, 1, True), (20, 1, True)],
    ]


def test_a_short_prompt_is_not_held_up_by_a_long_one() -> None:
    one = scheduler(budget=8)
    added(one, request(40), request(3))
    assert shape(iterate(one)) == [(0, 4, False), (0, 3, True)]
    assert shape(iterate(one)) == [(4, 4, False), (3, 1, True)]


def test_every_running_request_is_sure_of_one_token() -> None:
    one = scheduler(budget=8, seats=8, prefill_chunk=7)
    added(one, request(30), *(request(1) for _ in range(3)))
    iterate(one)
    for _ in range(4):
        plan = iterate(one)
        assert {row.request.request_id for row in plan.rows} == set(one.running)
        assert plan.num_tokens <= 8


def test_a_long_prompt_of_a_higher_class_leaves_the_others_a_token_each() -> None:
    one = scheduler(budget=8, prefill_chunk=8)
    lower = added(one, *(request(1, 20) for _ in range(3)))
    iterate(one)
    urgent = Request("urgent", [7] * 30, SamplingParams(max_tokens=8, priority=2), seed=0)
    added(one, urgent)
    iterate(one)
    plan = iterate(one)
    assert [row.request for row in plan.rows] == [urgent, *lower], "the higher class is served first"
    assert [row.num_tokens for row in plan.rows] == [5, 1, 1, 1]


def test_the_latest_arrived_is_preempted_and_computed_again() -> None:
    one = scheduler(blocks=6, block_size=2)
    first, second = added(one, request(4, 9), request(3, 6))
    plans = []
    while not plans or not plans[-1].preempted:
        plans.append(iterate(one))
        one.kv.pool.check()
    assert plans[-1].preempted == [second]
    assert (second.state, second.block_table, second.seat) == (RequestState.WAITING, [], -1)
    assert [row.request for row in plans[-1].rows] == [first]
    known = second.num_tokens
    while second.state is RequestState.WAITING:
        plans.append(iterate(one))
    assert first.state is RequestState.FINISHED
    assert plans[-1].rows[0].start == 0
    assert plans[-1].rows[0].num_tokens == known
    while one.has_work:
        iterate(one)
    assert (len(first.output_ids), len(second.output_ids), one.kv.pool.free_count) == (9, 6, 6)


def test_what_was_cached_and_when_it_began_is_settled_at_the_first_admission() -> None:
    one = Scheduler(KVManager(BlockPool(100, 4), prefix_caching=True), 8, 64, 4096)
    (again,) = added(one, request(9))
    one.commit(one.schedule(10.0))
    one.preempt(again)
    assert [row.start for row in one.schedule(20.0).rows] == [8], "its own blocks are found again"
    assert (again.num_cached_tokens, again.started_ms) == (0, 10.0)


def test_the_preempted_come_back_in_the_order_of_arrival() -> None:
    one = scheduler(blocks=12, block_size=1)
    requests = added(one, request(2, 11), request(2, 9), request(2, 9), request(2, 9))
    preempted: list[Request] = []
    while len(preempted) < 2:
        preempted += iterate(one).preempted
    assert preempted == [requests[3], requests[2]]
    assert one.queue.first_ones() == [requests[2], requests[3]]


def test_nobody_is_admitted_into_blocks_that_running_requests_will_need() -> None:
    one = scheduler(blocks=10, block_size=4, budget=8, prefill_chunk=8)
    added(one, request(28, 8), request(4, 4))  # 7 blocks and one to grow into; the newcomer needs 2
    plan = iterate(one)
    assert len(plan.rows) == 1
    assert one.waiting_reasons(plan)[0].reason == "no_budget"
    added(one, request(4, 30))
    while one.running and len(one.running) < 2:
        plan = iterate(one)
    assert not plan.preempted
    reasons = one.waiting_reasons(plan)
    assert (reasons[0].reason, reasons[0].detail) == (
        "no_kv",
        "needs 2 blocks, 2 free, 2 of them kept for those running",
    )


@pytest.mark.parametrize(
    ("settings", "first", "reason", "detail"),
    [
        ({"seats": 2}, [3, 3], "no_seat", "seats 2 of 2"),
        ({"blocks": 4}, [9], "no_kv", "needs 3 blocks, 1 free, 1 of them kept for those running"),
        ({"budget": 8, "prefill_chunk": 8}, [30], "no_budget", "budget 8 of 8"),
    ],
)
def test_every_waiting_request_has_a_reason_with_numbers(
    settings: dict[str, int], first: list[int], reason: str, detail: str
) -> None:
    one = scheduler(**settings)
    added(one, *(request(length, 7) for length in first))
    added(one, request(5, name="head-of-the-queue"), request(5, name="next"), request(5, name="last"))
    waiting = one.waiting_reasons(one.schedule())
    assert [(w.request_id, w.reason, w.detail) for w in waiting] == [
        ("head-of-the-queue", reason, detail),
        ("next", "behind", "1 ahead"),
        ("last", "behind", "2 ahead"),
    ]


def test_reasons_follow_the_queue() -> None:
    one = scheduler(seats=1)
    _, b, c, d = added(one, *(request(3, 3, name=f"{letter}-name") for letter in "abcd"))
    assert [w.request_id for w in one.waiting_reasons(one.schedule())] == ["b-name", "c-name", "d-name"]
    one.remove(c)
    assert [w.detail for w in one.waiting_reasons(iterate(one))] == ["seats 1 of 1", "1 ahead"]
    added(one, request(3, 3, name="e-name"))
    assert [w.request_id for w in one.waiting_reasons(iterate(one))] == ["b-name", "d-name", "e-name"]
    one.remove(b)
    assert [w.request_id for w in one.waiting_reasons(iterate(one))] == ["d-name", "e-name"]
    iterate(one)
    assert d.state is RequestState.RUNNING


def test_those_who_wait_are_told_with_the_length_of_their_prompts() -> None:
    one = scheduler(seats=1)
    added(one, request(3), request(5), request(70))
    assert [w.tokens for w in one.waiting_reasons(iterate(one))] == [5, 70]
    one.gate.pause()
    assert [w.tokens for w in one.waiting_reasons(iterate(one))] == [5, 70]


def test_reasons_follow_the_turn_of_users_while_nobody_comes_or_goes() -> None:
    one = scheduler(seats=1)
    for name, prompt, answer in (("b0", 5, 1), ("a0", 3, 9), ("a1", 3, 9), ("b1", 3, 9)):
        one.add(Request(name, [7] * prompt, SamplingParams(max_tokens=answer), seed=0, user=name[0]))
    iterate(one)
    told = []
    for _ in range(5):
        waiting = one.waiting_reasons(iterate(one))
        assert sorted(w.request_id for w in waiting) == ["a1", "b1"]
        told += [w.request_id for w in waiting if w.reason == "no_seat"]
    assert told == ["a1", "a1", "a1", "b1", "b1"], "a0 goes on, and what a has had comes to more than b's"


@pytest.mark.parametrize(
    ("prompt", "answer", "code", "message"),
    [
        (0, 4, "bad_params", "the prompt is empty"),
        (40, 5, "prompt_too_long", "has 40 tokens and max_tokens is 5: that can need 11 KV blocks, and there are 10"),
        (4000, 97, "prompt_too_long", "has 4000 tokens and max_tokens is 97: 4097 together, and the model takes 4096"),
    ],
)
def test_what_can_never_run_is_refused(prompt: int, answer: int, code: str, message: str) -> None:
    one = scheduler(blocks=10)
    with pytest.raises(RequestRefused, match=message) as refusal:
        one.add(request(prompt, answer))
    assert refusal.value.code == code
    assert not one.has_work


def test_what_just_fits_runs_to_its_end() -> None:
    one = scheduler(blocks=10)
    (largest,) = added(one, request(36, 5))
    while one.has_work:
        iterate(one)
    assert len(largest.output_ids) == 5


def test_a_budget_below_the_seats_is_refused() -> None:
    with pytest.raises(ValueError, match="a budget of 3 tokens is too small for 4 seats"):
        scheduler(seats=4, budget=3)


def test_a_request_that_leaves_while_it_waits_takes_nothing_with_it() -> None:
    one = scheduler(seats=1)
    _, second = added(one, request(3), request(3))
    iterate(one)
    one.remove(second)
    assert second.state is RequestState.FINISHED
    assert not one.waiting
    assert one.kv.pool.held_count == 1


def test_who_waits_is_told_with_the_time_at_which_it_came() -> None:
    one = scheduler(seats=1)
    first, second = added(one, request(4, 20), request(4, 20))
    second.arrived_ms = 1234.56
    waiting = one.waiting_reasons(iterate(one))
    assert [(w.request_id, w.since) for w in waiting] == [(second.request_id, 1234.6)]
    one.preempt(first)
    assert {w.request_id: w.since for w in one.waiting_reasons(Schedule())}[first.request_id] is None
