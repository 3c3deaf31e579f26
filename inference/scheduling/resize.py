"""Other limits for a scheduler with requests in it: seats, budget, blocks.

Knows: the scheduler, who holds what. Must not know: torch, who asks for it.

A change holds from the next iteration on, whatever runs. Whoever has a seat or a block beyond the new number is
preempted: it waits at the head of the queue, comes back as soon as there is room and goes on where it was, since a
request is a pure function. To let such requests end first would mean iterations with more rows than seats or than the
budget has tokens, and a change that nobody sees for minutes. What is left are seats and blocks 0..n - 1: a request
keeps its seat while it runs, and a block's number is its place in memory.
"""

from __future__ import annotations

from inference.checks import ParameterError
from inference.limits import Limits
from inference.scheduling.request import Request
from inference.scheduling.scheduler import Scheduler


def limits_of(scheduler: Scheduler) -> Limits:
    """Those in force."""
    return Limits(scheduler.max_num_seqs, scheduler.max_num_batched_tokens, scheduler.kv.pool.num_blocks)


def set_limits(scheduler: Scheduler, limits: Limits) -> None:
    """`limits`: as `Limits.changed` gave them. Raises ParameterError, and nothing has changed, where a request that is
    here could never run again."""
    pool = scheduler.kv.pool
    if limits.kv_blocks < pool.num_blocks:
        _all_must_fit(scheduler, limits.kv_blocks)
    displaced = [request for request in scheduler.running.values() if _is_beyond(request, limits)]
    for request in displaced:
        scheduler.displace(request)
    pool.resize(limits.kv_blocks)
    scheduler.set_budget(limits.max_num_batched_tokens)
    scheduler.max_num_seqs = limits.max_num_seqs
    running, preempted = scheduler.running.values(), len(scheduler.queue.preempted)
    most_idle = max(0, limits.max_num_seqs - len(running) - preempted)
    scheduler.seats.resize(limits.max_num_seqs, [request.seat for request in running], most_idle)
    for policy in (scheduler.policy, scheduler.next_policy):
        if policy is not None:
            policy.fit(limits.max_num_seqs)


def _is_beyond(request: Request, limits: Limits) -> bool:
    return request.seat >= limits.max_num_seqs or max(request.block_table, default=0) >= limits.kv_blocks


def _all_must_fit(scheduler: Scheduler, blocks: int) -> None:
    """Whoever was let in can run alone: what can never fit is refused at the door, and must not come to be so later."""
    pool = scheduler.kv.pool
    here = (*scheduler.running.values(), *scheduler.waiting.values())
    needed = max((pool.blocks_for(request.max_total_tokens) for request in here), default=0)
    if needed > blocks:
        raise ParameterError(
            f"kv_blocks would be {blocks}, and a request that waits or runs here can need {needed}; "
            f"wait until it has ended, or leave at least {needed}"
        )
