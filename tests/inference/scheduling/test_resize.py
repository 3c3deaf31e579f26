"""Other limits while requests run: who loses a seat or a block, who comes back, what is refused."""

from __future__ import annotations

import pytest
from support.iterations import check_map, iterate

from inference.checks import ParameterError
from inference.config import SamplingParams
from inference.limits import Limits
from inference.scheduling.block_map import BlockMap
from inference.scheduling.blocks import BlockPool, PoolError
from inference.scheduling.kv_manager import KVManager
from inference.scheduling.policies import make_policy
from inference.scheduling.request import Request, RequestRefused
from inference.scheduling.resize import limits_of, set_limits
from inference.scheduling.scheduler import Scheduler


def scheduler(seats: int = 4, budget: int = 64, blocks: int = 40, policy: str = "continuous") -> Scheduler:
    return Scheduler(KVManager(BlockPool(blocks, 4)), seats, budget, 400, make_policy(policy, seats, 50.0))


def request(name: str, prompt: int = 4, answer: int = 20) -> Request:
    return Request(name, [7] * prompt, SamplingParams(max_tokens=answer), 0)


def fill(one: Scheduler, names: str, **fields: int) -> dict[str, Request]:
    made = {name: request(name, **fields) for name in names}
    for each in made.values():
        one.add(each)
    return made


def names(plan: object) -> str:
    return "".join(row.request.request_id for row in plan.rows)  # type: ignore[attr-defined]


def test_fewer_seats_preempt_whoever_sits_beyond_and_they_come_back_in_order() -> None:
    one = scheduler()
    made = fill(one, "abcde")
    assert names(iterate(one)) == "abcd"
    set_limits(one, Limits(2, 64, 40))
    plan = iterate(one)
    assert (names(plan), [r.request_id for r in plan.preempted]) == ("ab", ["c", "d"])
    reasons = [(w.request_id, w.reason, w.detail) for w in one.waiting_reasons(plan)]
    assert reasons[0] == ("c", "no_seat", "seats 2 of 2")
    assert [reason for _, reason, _ in reasons[1:]] == ["behind", "behind"]
    one.remove(made["a"])
    assert names(iterate(one)) == "bc"
    assert made["c"].num_preemptions == 1
    set_limits(one, Limits(4, 64, 40))
    assert names(iterate(one)) == "cbde", "whoever was preempted outranks whoever was not"
    assert {r.seat for r in one.running.values()} == {0, 1, 2, 3}


def test_a_low_seat_is_kept_and_a_displaced_one_takes_the_next() -> None:
    one = scheduler()
    made = fill(one, "abcd")
    iterate(one)
    for name in "abc":
        one.remove(made[name])
    set_limits(one, Limits(1, 64, 40))
    assert made["d"].seat == -1
    plan = iterate(one)
    assert (names(plan), [r.request_id for r in plan.preempted]) == ("", ["d"])
    assert one.wakes_at(0.0) == 0.0
    assert (names(iterate(one)), made["d"].seat) == ("d", 0)


def test_whoever_left_meanwhile_is_not_told_of() -> None:
    one = scheduler()
    made = fill(one, "ab")
    iterate(one)
    set_limits(one, Limits(1, 64, 40))
    one.remove(made["b"])
    assert iterate(one).preempted == []


def test_a_smaller_budget_cuts_chunks_and_still_serves_everybody() -> None:
    one = scheduler()
    fill(one, "abcd", prompt=40)
    set_limits(one, Limits(4, 6, 40))
    for _ in range(12):
        plan = iterate(one)
        assert 1 <= plan.num_tokens <= 6
        assert all(row.num_tokens <= 3 for row in plan.rows), "half of the budget is a prompt's"


def test_fewer_blocks_are_the_first_ones() -> None:
    one = scheduler()
    made = fill(one, "abc", prompt=30, answer=8)
    iterate(one)
    iterate(one)
    assert one.kv.pool.held_count >= 24
    set_limits(one, Limits(4, 64, 10))
    pool = one.kv.pool
    assert (pool.num_blocks, pool.available_count + pool.held_count) == (10, 10)
    pool.check()
    assert all(block < 10 for r in one.running.values() for block in r.block_table)
    assert 0 < len(one.running) < 3
    for _ in range(60):
        iterate(one)
        pool.check()
    assert all(len(r.output_ids) == 8 for r in made.values())
    set_limits(one, Limits(4, 64, 40))
    assert pool.free_count == 40


def test_fewer_blocks_than_somebody_here_can_need_are_refused() -> None:
    one = scheduler()
    fill(one, "a", prompt=30, answer=30)
    before = limits_of(one)
    with pytest.raises(
        ParameterError, match="kv_blocks would be 14, and a request that waits or runs here can need 15"
    ):
        set_limits(one, Limits(2, 8, 14))
    assert limits_of(one) == before
    set_limits(one, Limits(4, 64, 15))
    with pytest.raises(RequestRefused, match="that can need 16 KV blocks, and there are 15"):
        one.add(request("b", prompt=30, answer=34))


def test_a_static_batch_that_lost_seats_ends_and_is_not_stuck() -> None:
    one = scheduler(policy="static")
    made = fill(one, "abcdefgh", answer=6)
    assert names(iterate(one)) == "abcd"
    one.remove(made["a"])
    assert one.seats.idle == [0]
    set_limits(one, Limits(1, 64, 40))
    order = []
    for _ in range(200):
        plan = iterate(one)
        order.append(names(plan))
        assert len(plan.rows) <= 1
    assert not one.has_work
    assert [name for i, name in enumerate(order) if name and name not in order[:i]] == list("bcdefgh")


def test_a_batch_is_no_larger_than_there_are_seats() -> None:
    one = scheduler(policy="dynamic")
    set_limits(one, Limits(2, 64, 40))
    fill(one, "ab")
    assert names(iterate(one)) == "ab", "it is full with two"
    one.switch_policy(make_policy("static", 4, 0.0))
    assert one.next_policy is not None
    assert one.next_policy.size == 2  # type: ignore[attr-defined]
    set_limits(one, Limits(3, 64, 40))
    assert (one.policy.size, one.next_policy.size) == (3, 3)  # type: ignore[attr-defined]


def test_the_map_of_blocks_follows_a_pool_that_was_larger_or_smaller_for_a_while() -> None:
    one = scheduler(blocks=14)
    seen = BlockMap()
    fill(one, "abcd", prompt=12, answer=34)

    def told() -> None:
        seen.apply(one.kv.changes(), one.kv.pool.num_blocks)
        check_map(seen, one.kv.pool, one.running.values())

    for sizes in ((14,), (12,), (14, 12), (14,), (12, 14), (12, 14, 13)):
        for size in sizes:
            set_limits(one, Limits(4, 64, size))
            for _ in range(5):
                iterate(one)
        told()


def test_a_pool_does_not_shrink_under_a_holder() -> None:
    pool = BlockPool(8, 4)
    held = pool.allocate(5)
    assert held is not None
    with pytest.raises(PoolError, match="a pool of 4"):
        pool.resize(4)
    assert pool.num_blocks == 8
    pool.register(held[4], b"key")
    pool.free(held)
    assert pool.cached_count == 1
    pool.resize(4)
    assert (pool.free_count, pool.cached_count, pool.lookup([b"key"])) == (4, 0, [])
    pool.check()
    pool.resize(8)
    assert sorted(pool.allocate(8) or ()) == list(range(8))
    pool.check()
