"""Iterations of a scheduler without an engine."""

from __future__ import annotations

from inference.scheduling.plan import Schedule
from inference.scheduling.scheduler import Scheduler


def iterate(scheduler: Scheduler, now: float = 0.0) -> Schedule:
    """An iteration in which every request that samples gets a token; those with all their tokens leave."""
    plan = scheduler.schedule(now)
    complete(scheduler, plan)
    return plan


def complete(scheduler: Scheduler, plan: Schedule) -> None:
    scheduler.commit(plan)
    for row in plan.rows:
        if row.samples:
            row.request.output_ids.append(9)
            if len(row.request.output_ids) == row.request.params.max_tokens:
                scheduler.remove(row.request)
