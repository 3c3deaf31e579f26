"""Static, dynamic and continuous batching, told by the same few requests."""

import pytest
from support.iterations import iterate

from inference.config import POLICIES, SamplingParams
from inference.scheduling.blocks import BlockPool
from inference.scheduling.kv_manager import KVManager
from inference.scheduling.policies import DynamicPolicy, StaticPolicy, make_policy
from inference.scheduling.request import Request, RequestState
from inference.scheduling.scheduler import Scheduler
from inference.scheduling.waiting_queue import WaitingQueue


def request(name: str, prompt: int, answer: int, arrived: float = 0.0) -> Request:
    return Request(name, [7] * prompt, SamplingParams(max_tokens=answer), seed=0, arrived_ms=arrived)


def scheduler(policy: str, size: int = 2, delay: float = 100.0, seats: int = 4, budget: int = 64) -> Scheduler:
    return Scheduler(KVManager(BlockPool(100, 4)), seats, budget, 4096, make_policy(policy, size, delay))


def tape(one: Scheduler, until: int = 40) -> list[str]:
    """Names in each iteration, in a row."""
    result = []
    while one.has_work and len(result) < until:
        result.append("".join(sorted(row.request.request_id for row in iterate(one).rows)))
    return result


# The article's three users, and one who comes along: a sum, an advert, a novel.
def three_users(one: Scheduler) -> None:
    for name, answer in (("a", 1), ("b", 3), ("c", 6), ("d", 2)):
        one.add(request(name, 3, answer))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("continuous", ["abcd", "bcd", "bc", "c", "c", "c"]),
        ("static", ["ab", "b", "b", "cd", "cd", "c", "c", "c", "c"]),
        ("dynamic", ["ab", "b", "b", "cd", "cd", "c", "c", "c", "c"]),
    ],
)
def test_the_three_policies_on_the_same_requests(policy: str, expected: list[str]) -> None:
    one = scheduler(policy)
    three_users(one)
    assert tape(one) == expected


def test_a_static_batch_takes_whoever_waits_and_nobody_later() -> None:
    one = scheduler("static", size=4)
    one.add(request("a", 3, 2))
    assert len(iterate(one).rows) == 1
    late = request("late", 3, 1)
    one.add(late)
    plan = iterate(one)
    reason = one.waiting_reasons(plan)[0]
    assert (reason.reason, reason.detail) == ("policy", "static batch: 1 still run, 1 iterations left at most")
    assert late.state is RequestState.WAITING
    assert [row.request for row in iterate(one).rows] == [late]


def test_a_full_batch_says_so() -> None:
    one = scheduler("static", size=2)
    three_users(one)
    reasons = one.waiting_reasons(iterate(one))
    assert (reasons[0].request_id, reasons[0].detail) == ("c", "static batch of 2 is full")


def test_a_batch_whose_prompts_exceed_the_budget_joins_over_several_iterations() -> None:
    one = scheduler("static", size=3, budget=16)
    for name in "abcd":
        one.add(request(name, 12, 5))
    assert tape(one)[:4] == ["ab", "abc", "abc", "abc"]


def test_a_batch_that_finds_no_blocks_goes_without_those_it_has_no_room_for() -> None:
    one = scheduler("static", size=3, budget=1024)
    for name, prompt, answer in (("a", 200, 2), ("b", 100, 5), ("c", 120, 1)):  # of 400 positions
        one.add(request(name, prompt, answer))
    assert tape(one) == ["ab", "ab", "b", "b", "b", "c"], "not even when there is room again"


def test_seats_of_ended_requests_stay_idle_until_the_slowest_ends() -> None:
    one = scheduler("static", size=3)
    for name, answer in (("a", 1), ("b", 2), ("c", 4), ("next", 1)):
        one.add(request(name, 3, answer))
    idle = []
    while one.waiting:
        iterate(one)
        idle.append(list(one.seats.idle))
    assert idle[:4] == [[0], [0, 1], [0, 1], []]
    assert one.kv.pool.held_count == 0


def test_a_batch_goes_on_while_one_of_it_is_to_be_computed_again() -> None:
    one = scheduler("static", size=2)
    a, b, late = request("a", 3, 9), request("b", 3, 3), request("late", 3, 1)
    for each in (a, b, late):
        one.add(each)
    iterate(one)
    one.preempt(b)
    one.remove(a)
    assert one.seats.idle == [0], "b comes back to this batch"
    while b.state is not RequestState.FINISHED:
        assert [row.request for row in iterate(one).rows] == [b]
    assert one.seats.idle == []
    assert [row.request for row in iterate(one).rows] == [late]


def test_a_cancelled_member_leaves_an_idle_seat_and_its_blocks_are_free() -> None:
    one = scheduler("static", size=2)
    a, b = request("a", 3, 9), request("b", 3, 9)
    one.add(a)
    one.add(b)
    iterate(one)
    one.remove(a)
    assert (one.seats.idle, one.kv.pool.held_count) == ([0], 1)
    one.remove(b)
    assert (one.seats.idle, one.kv.pool.held_count) == ([], 0)


def test_padding_is_what_a_rectangle_of_prompts_would_add() -> None:
    one = scheduler("static", size=3)
    for name, prompt in (("a", 3), ("b", 10), ("c", 6)):
        one.add(request(name, prompt, 2))
    assert [iterate(one).padding for _ in range(2)] == [7 + 0 + 4, 0]
    assert scheduler("continuous").schedule().padding == 0


def test_a_dynamic_batch_fills_until_its_oldest_has_waited_long_enough() -> None:
    one = scheduler("dynamic", size=3, delay=100.0)
    one.add(request("a", 3, 2, arrived=1000.0))
    plan = iterate(one, 1030.0)
    assert not plan.rows
    reason = one.waiting_reasons(plan)[0]
    assert (reason.reason, reason.detail) == ("policy", "dynamic batch fills: 1 of 3, 70 ms left at most")
    assert one.wakes_at(1030.0) == 1100.0
    one.add(request("b", 3, 2, arrived=1080.0))
    assert [row.request.request_id for row in iterate(one, 1100.0).rows] == ["a", "b"]


def test_a_dynamic_batch_that_is_full_does_not_wait() -> None:
    one = scheduler("dynamic", size=2, delay=1e9)
    one.add(request("a", 3, 2))
    assert one.wakes_at(0.0) > 0.0
    one.add(request("b", 3, 2))
    assert one.wakes_at(0.0) == 0.0
    assert len(iterate(one).rows) == 2


def test_switching_drains_first() -> None:
    one = scheduler("continuous")
    one.add(request("a", 3, 3))
    one.add(request("b", 3, 2))
    iterate(one)
    one.switch_policy(StaticPolicy(2))
    late = request("late", 3, 1)
    one.add(late)
    plan = iterate(one)
    detail = "switching to the static policy: 2 running requests end first"
    assert [(w.reason, w.detail) for w in one.waiting_reasons(plan)] == [("policy", detail)]
    assert one.policy.name == "continuous"
    iterate(one)
    assert [row.request for row in iterate(one).rows] == [late]
    assert (one.policy.name, one.next_policy) == ("static", None)


def test_a_preempted_member_comes_back_into_its_batch() -> None:
    one = scheduler("static", size=2)
    a, b = request("a", 3, 6), request("b", 3, 6)
    for each in (a, b, request("c", 3, 1)):
        one.add(each)
    iterate(one)
    one.preempt(b)
    assert [row.request for row in iterate(one).rows] == [a, b]


def test_switching_to_dynamic_lets_a_batch_fill() -> None:
    one = scheduler("continuous")
    one.switch_policy(DynamicPolicy(8, 50.0))
    one.add(request("a", 3, 1))
    assert [len(iterate(one, now).rows) for now in (0.0, 49.0, 50.0)] == [0, 0, 1]


def test_every_name_of_the_settings_is_a_policy() -> None:
    assert [make_policy(name, 1, 1.0).name for name in POLICIES] == list(POLICIES)


def test_a_batch_closes_when_those_who_were_to_join_have_left() -> None:
    one = scheduler("static", size=4, budget=16)
    for name, prompt in (("a", 14), ("b", 8), ("c", 8), ("d", 8)):
        one.add(request(name, prompt, 30))
    joining = [iterate(one)]
    one.remove(one.waiting["d"])
    joining += [iterate(one) for _ in range(4)]
    assert sum(plan.padding for plan in joining) == 6 + 6, "of a, b and c"
    late = request("late", 3, 1)
    one.add(late)
    plan = iterate(one)
    assert late.state is RequestState.WAITING
    assert one.waiting_reasons(plan)[0].reason == "policy"


def test_a_batch_does_not_wait_for_those_whom_their_cap_keeps_out() -> None:
    one = Scheduler(
        KVManager(BlockPool(100, 4)), 4, 64, 4096, make_policy("static", 4, 0.0), queue=WaitingQueue(1e9, 1)
    )
    for name, user in (("a", "u"), ("b", "u")):
        one.add(Request(name, [7] * 3, SamplingParams(max_tokens=3), 0, user))
    iterate(one)
    one.add(Request("c", [7] * 3, SamplingParams(max_tokens=3), 0, "v"))
    assert tape(one) == ["a", "a", "bc", "bc", "bc"], "c came when the batch of a had begun"


def test_switching_back_needs_no_draining() -> None:
    one = scheduler("continuous")
    one.add(request("a", 3, 5))
    iterate(one)
    one.switch_policy(StaticPolicy(2))
    one.switch_policy(make_policy("continuous", 1, 1.0))
    late = request("late", 3, 1)
    one.add(late)
    assert late in [row.request for row in iterate(one).rows]


def test_the_oldest_of_a_filling_batch_is_the_one_that_waited_longest() -> None:
    one = scheduler("dynamic", size=3, delay=100.0)
    one.add(request("came first", 3, 2, arrived=1000.0))
    one.add(request("waited elsewhere", 3, 2, arrived=920.0))
    assert one.wakes_at(1000.0) == 1020.0
