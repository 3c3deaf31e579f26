"""Iterations of a scheduler without an engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from inference.scheduling.block_map import BlockMap
from inference.scheduling.blocks import BlockPool
from inference.scheduling.plan import Schedule
from inference.scheduling.request import Request
from inference.scheduling.scheduler import Scheduler


def _nine(request: Request) -> int:
    return 9


def iterate(scheduler: Scheduler, now: float = 0.0) -> Schedule:
    """An iteration in which every request that samples gets a token; those with all their tokens leave."""
    plan = scheduler.schedule(now)
    complete(scheduler, plan)
    return plan


def complete(scheduler: Scheduler, plan: Schedule, next_token: Callable[[Request], int] = _nine) -> None:
    """next_token: of a request, whatever was drafted."""
    scheduler.commit(plan)
    for row in plan.rows:
        if row.samples:
            accepted = 0
            while _push(scheduler, row.request, next_token) in row.drafts[accepted : accepted + 1]:
                scheduler.accept(row.request)
                accepted += 1
            if row.drafts:
                scheduler.settle(row, accepted)


def _push(scheduler: Scheduler, request: Request, next_token: Callable[[Request], int]) -> int | None:
    """Append the next token; None where it was the last."""
    token = next_token(request)
    request.output_ids.append(token)
    if len(request.output_ids) < request.params.max_tokens:
        return token
    scheduler.remove(request)
    return None


def check_map(told: BlockMap, pool: BlockPool, requests: Iterable[Request]) -> None:
    """The map that changes made is the pool's own state, and a block's owner one of those who hold it."""
    holders: dict[int, set[str]] = defaultdict(set)
    for request in requests:
        for block in request.block_table:
            holders[block].add(request.request_id)
    drawn = told.to_json()
    assert drawn["total"] == pool.num_blocks
    for block, (references, cached, place) in enumerate(drawn["blocks"]):
        assert (references, cached) == (pool.references(block), pool.is_findable(block))
        owner = None if place < 0 else drawn["owners"][place]
        assert owner in (holders[block] or {None})


def check_drafts(scheduler: Scheduler, plan: Schedule) -> None:
    """They come last: after everybody has a place, and out of nobody's budget or blocks."""
    drafting, pool, kv = scheduler.drafting, scheduler.kv.pool, scheduler.kv
    drafted = [row for row in plan.rows if row.drafts]
    if not drafted:
        return
    assert plan.num_tokens <= drafting.rows
    assert not any(row.request.in_prefill for row in plan.rows)
    assert plan.blocked is None or plan.blocked[0] != "no_budget"
    for row in drafted:
        assert len(row.drafts) <= drafting.most
        assert len(row.request.output_ids) + len(row.drafts) < row.request.params.max_tokens
        assert {*row.drafts} <= {*row.request.prompt_ids, *row.request.output_ids}
    promised = sum(max(0, kv.will_need(row.request) - len(row.request.block_table)) for row in plan.rows)
    assert plan.promised == promised
    if any(len(row.request.block_table) > pool.blocks_for(row.request.num_tokens) for row in drafted):
        assert pool.available_count >= promised, "a block was taken that somebody else was promised"


def check_traces_of_drafts(scheduler: Scheduler) -> None:
    """After an iteration all is as if there had been none."""
    pool = scheduler.kv.pool
    for request in scheduler.running.values():
        computed = request.num_computed_tokens
        assert request.in_prefill or computed == request.num_tokens - 1
        assert len(request.block_table) == pool.blocks_for(computed)
        for block in request.block_table[computed // pool.block_size :]:
            assert block not in pool._key_of, "a block that isn't full of computed tokens can be found"
