"""Which requests get drafts, how many, and what they leave behind: nothing."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.iterations import check_drafts, check_traces_of_drafts, complete

from inference.config import POLICIES, EngineConfig, ParameterError, SamplingParams
from inference.scheduling.blocks import BlockPool
from inference.scheduling.drafts import Drafting
from inference.scheduling.kv_manager import KVManager
from inference.scheduling.plan import Schedule
from inference.scheduling.policies import make_policy
from inference.scheduling.request import Request
from inference.scheduling.scheduler import Scheduler


def scheduler_of(
    most: int = 2,
    rows: int = 8,
    blocks: int = 100,
    size: int = 4,
    seats: int = 8,
    budget: int = 64,
    caching: bool = False,
    policy: str = "continuous",
) -> Scheduler:
    kv = KVManager(BlockPool(blocks, size), caching)
    return Scheduler(kv, seats, budget, 400, make_policy(policy, seats, 0.0), drafting=Drafting(most, rows))


def request(name: str, prompt: list[int], answer: int = 40) -> Request:
    return Request(name, prompt, SamplingParams(max_tokens=answer), 0)


def right(one: Request) -> int:
    """The token that makes a prompt of ones and twos go on as it is."""
    return 1 if (len(one.prompt_ids) + len(one.output_ids)) % 2 == 0 else 2


def wrong(one: Request) -> int:
    """Never the same again, and never what was guessed."""
    return 1000 + len(one.output_ids)


REPEATS = [1, 2] * 5


def decoding(scheduler: Scheduler, *requests: Request, tokens: int = 1) -> None:
    """All of them have computed their prompts, and have so many tokens each, without drafts."""
    drafting, scheduler.drafting = scheduler.drafting, Drafting()
    for one in requests:
        scheduler.add(one)
    for _ in range(100):
        if min(len(one.output_ids) for one in requests) == tokens:
            break
        complete(scheduler, scheduler.schedule(), right)
    assert not any(one.in_prefill for one in requests)
    scheduler.drafting = drafting


def drafted(plan: Schedule) -> list[int]:
    assert plan.num_tokens == sum(row.num_tokens for row in plan.rows)
    return [len(row.drafts) for row in plan.rows]


def test_one_that_repeats_gets_drafts_and_keeps_those_that_were_right() -> None:
    scheduler, one = scheduler_of(), request("a", REPEATS)
    decoding(scheduler, one)
    plan = scheduler.schedule()
    assert (plan.rows[0].num_tokens, plan.rows[0].drafts, plan.rows[0].wanted) == (3, (2, 1), 3)
    complete(scheduler, plan, right)
    assert (one.output_ids, one.num_computed_tokens) == ([1, 2, 1, 2], 13)
    assert drafted(scheduler.schedule()) == [2]


def test_wrong_drafts_leave_no_trace() -> None:
    scheduler, one = scheduler_of(), request("a", REPEATS)
    decoding(scheduler, one)
    plan = scheduler.schedule()
    assert (len(plan.rows[0].drafts), len(one.block_table)) == (2, 4)
    complete(scheduler, plan, wrong)
    assert (one.output_ids, one.num_computed_tokens, len(one.block_table)) == ([1, 1001], 11, 3)
    assert scheduler.kv.pool.held_count == 3


def test_no_drafts_by_default() -> None:
    scheduler = Scheduler(KVManager(BlockPool(100, 4)), 8, 64, 400)
    decoding(scheduler, request("a", REPEATS))
    assert drafted(scheduler.schedule()) == [0]
    assert EngineConfig().draft_tokens == 0


@pytest.mark.parametrize(("most", "rows"), [(17, 8), (-1, 8), (4, 0)])
def test_settings_are_checked(most: int, rows: int) -> None:
    with pytest.raises(ParameterError, match=r"draft_(tokens|rows) is -?\d+"):
        EngineConfig(draft_tokens=most, draft_rows=rows)


def test_rows_are_shared_out() -> None:
    scheduler = scheduler_of(rows=8)
    decoding(scheduler, *(request(name, REPEATS) for name in "abc"))
    assert drafted(scheduler.schedule()) == [2, 2, 1]


def test_who_has_no_guess_leaves_its_rows_to_the_others() -> None:
    scheduler = scheduler_of(most=4, rows=5)
    decoding(scheduler, request("a", list(range(10, 20))), request("b", REPEATS))
    assert drafted(scheduler.schedule()) == [0, 3]


def test_none_when_as_many_decode_as_there_are_rows() -> None:
    scheduler = scheduler_of(rows=2)
    decoding(scheduler, request("a", REPEATS), request("b", REPEATS))
    assert drafted(scheduler.schedule()) == [0, 0]


def test_none_beside_a_prompt() -> None:
    scheduler = scheduler_of()
    decoding(scheduler, request("a", REPEATS))
    scheduler.add(request("b", [1] * 5))
    plan = scheduler.schedule()
    assert [len(row.drafts) for row in plan.rows] == [0, 0]


def test_the_budget_bounds_them() -> None:
    scheduler = scheduler_of(seats=2, budget=2)
    decoding(scheduler, request("a", REPEATS))
    assert drafted(scheduler.schedule()) == [1]
    crowded = scheduler_of(seats=2, budget=2)
    decoding(crowded, request("a", REPEATS), request("b", REPEATS))
    assert drafted(crowded.schedule()) == [0, 0]


def test_no_more_than_the_answer_can_still_take() -> None:
    for answer in (2, 3, 4):
        scheduler = scheduler_of()
        decoding(scheduler, request("a", REPEATS, answer))
        assert drafted(scheduler.schedule()) == [min(answer - 2, 2)]


def test_only_into_blocks_that_it_was_promised() -> None:
    """Blocks of one position: it will need one more than it has, and gets no second one for a draft."""
    scheduler = scheduler_of(size=1)
    decoding(scheduler, request("a", REPEATS))
    assert drafted(scheduler.schedule()) == [1]


def test_not_into_blocks_that_others_were_promised() -> None:
    """Two requests of 15 tokens in four blocks of four positions, each promised one more. With one left for both of
    them, drafts get no more than the room for one token that each has."""
    for blocks, expected in ((10, [2, 2]), (9, [1, 1]), (8, [1, 1])):
        scheduler = scheduler_of(blocks=blocks)
        decoding(scheduler, request("a", REPEATS, 20), request("b", REPEATS, 20), tokens=5)
        plan = scheduler.schedule()
        assert drafted(plan) == expected
        assert not plan.preempted
        check_drafts(scheduler, plan)


def test_whoever_waits_for_blocks_is_not_kept_waiting_by_drafts() -> None:
    with_drafts, without = (joins_at(most) for most in (4, 0))
    assert with_drafts <= without


def joins_at(most: int) -> int:
    """The number of tokens that the first request has when the second one gets its blocks."""
    scheduler, first = scheduler_of(most, blocks=9), request("a", REPEATS, 20)
    decoding(scheduler, first)
    second = request("b", [5] * 9, 4)
    scheduler.add(second)
    while second.started_ms is None:
        complete(scheduler, scheduler.schedule(), lambda one: 1000 + len(one.output_ids) // 5)
    return len(first.output_ids)


def test_a_block_is_found_again_only_when_its_drafts_were_right() -> None:
    for token, registered in ((right, 3), (wrong, 2)):
        scheduler, one = scheduler_of(caching=True), request("a", REPEATS)
        decoding(scheduler, one)
        complete(scheduler, scheduler.schedule(), token)
        assert one.prefix is not None
        assert len(scheduler.kv.pool.lookup(one.prefix.keys(one.num_computed_tokens // 4, one.tokens))) == registered
        assert len(scheduler.kv.pool._key_of) == registered


def test_each_accepted_token_is_charged() -> None:
    shares = []
    for most in (4, 0):
        scheduler, one = scheduler_of(most), request("a", REPEATS)
        decoding(scheduler, one)
        while len(one.output_ids) < 20:
            complete(scheduler, scheduler.schedule(), right)
        shares.append(scheduler.queue.shares.had("") / len(one.output_ids))
    assert shares[0] == pytest.approx(shares[1], rel=0.1)


def test_a_request_whose_ids_cannot_be_read_gets_none_and_goes_on() -> None:
    scheduler, one = scheduler_of(), request("a", REPEATS)
    decoding(scheduler, one)

    class Broken(list[int]):
        def __getitem__(self, item: object) -> int:
            raise RuntimeError("broken")

    one.prompt_ids = Broken(REPEATS)
    assert drafted(scheduler.schedule()) == [0]


@settings(max_examples=150, deadline=None)
@given(
    size=st.sampled_from([1, 2, 4, 16]),
    spare=st.integers(0, 6),
    budget=st.integers(4, 40),
    rows=st.integers(1, 20),
    most=st.sampled_from([1, 3, 16]),
    caching=st.booleans(),
    policy=st.sampled_from(POLICIES),
    prompts=st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=12), min_size=1, max_size=4),
    answers=st.lists(st.integers(1, 40), min_size=4, max_size=4),
    rhythm=st.integers(1, 6),
    preempts=st.sets(st.integers(1, 60), max_size=6),
)
def test_answers_blocks_and_promises(
    size: int,
    spare: int,
    budget: int,
    rows: int,
    most: int,
    caching: bool,
    policy: str,
    prompts: list[list[int]],
    answers: list[int],
    rhythm: int,
    preempts: set[int],
) -> None:
    """In a pool that is hardly large enough: everybody gets the tokens that it gets without drafts, all end, and every
    rule holds in every iteration."""
    needs = [-(-(len(prompt) + answer) // size) for prompt, answer in zip(prompts, answers, strict=False)]

    def run(most: int) -> list[list[int]]:
        return run_all(
            scheduler_of(most, rows, max(needs) + spare, size, 4, budget, caching, policy),
            [request(f"r{i}", prompt, answers[i]) for i, prompt in enumerate(prompts)],
            lambda one: 1 + len(one.output_ids) ** 2 % rhythm,
            preempts,
        )

    assert run(most) == run(0)


def run_all(
    scheduler: Scheduler, requests: list[Request], token: Callable[[Request], int], preempts: set[int]
) -> list[list[int]]:
    for one in requests:
        scheduler.add(one)
    iterations = 0
    while scheduler.has_work:
        iterations += 1
        assert iterations < 1000
        plan = scheduler.schedule()
        check_drafts(scheduler, plan)
        complete(scheduler, plan, token)
        check_traces_of_drafts(scheduler)
        scheduler.kv.pool.check()
        if iterations in preempts and scheduler.running:
            scheduler.preempt(next(reversed(scheduler.running.values())))
    assert scheduler.kv.pool.available_count == scheduler.kv.pool.num_blocks
    return [one.output_ids for one in requests]
