"""Who may join the next iteration, and why the first in line may not: questions that change nothing.

Knows: a scheduler's seats, blocks, budget and policy. Must not know: how an iteration is planned, the clock (moments
are handed in). Each refusal is a reason with its numbers, which the ledger and those who wait are told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inference.scheduling.cost_model import Load
from inference.scheduling.pace import PrefillRoom
from inference.scheduling.plan import Schedule
from inference.scheduling.policies import Room, Situation
from inference.scheduling.request import Request, WaitReason

if TYPE_CHECKING:
    from inference.scheduling.scheduler import Scheduler

Refusal = tuple[WaitReason, str]


class Admission:
    """Of one scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def room(self, now: float) -> Room:
        """How many new requests the policy lets in."""
        scheduler = self._scheduler
        if scheduler.next_policy is not None:
            running = len(scheduler.running) + len(scheduler.queue.preempted)
            return Room(
                0, f"switching to the {scheduler.next_policy.name} policy: {running} running requests end first"
            )
        return scheduler.policy.room(self._situation(now))

    def opens_in_ms(self, now: float) -> float:
        """In how many ms the policy would let somebody in, if nobody came until then."""
        return self._scheduler.policy.opens_in_ms(self._situation(now))

    def prefill_room(self) -> PrefillRoom | None:
        """What the pace leaves of an iteration for prompts; None where it sets no bound."""
        scheduler = self._scheduler
        if scheduler.pace.gap_ms is None:
            return None
        decoding = [r for r in scheduler.running.values() if not r.in_prefill]
        reads = sum(r.num_tokens for r in decoding)
        waiting = min(len(scheduler.waiting), scheduler.seats.free_count)
        prompts = len(scheduler.running) - len(decoding) + waiting
        return scheduler.pace.room(Load(len(decoding), reads, len(decoding)), prompts)

    def no_place(self, request: Request, plan: Schedule, room: Room, joined: int) -> Refusal | None:
        """Why this one, the first in line, can't join now, before its blocks are looked at; None if nothing speaks
        against it."""
        scheduler = self._scheduler
        if request.started_ms is None and joined >= room.count:
            return WaitReason.POLICY, room.why
        if not scheduler.seats.free_count:
            idle = f", {len(scheduler.seats.idle)} of them idle" if scheduler.seats.idle else ""
            return WaitReason.NO_SEAT, f"seats {scheduler.max_num_seqs} of {scheduler.max_num_seqs}{idle}"
        if plan.preempted:
            return WaitReason.NO_KV, f"{len(plan.preempted)} lost their blocks in this iteration"
        return None

    def no_room(self, request: Request, found: list[int], plan: Schedule) -> Refusal | None:
        """The same for its blocks and tokens. found: blocks of its prompt that are in the prefix cache."""
        scheduler = self._scheduler
        if too_little := scheduler.kv.why_too_little(request, found, plan.promised):
            return WaitReason.NO_KV, too_little
        if plan.num_tokens >= scheduler.max_num_batched_tokens:
            return WaitReason.NO_BUDGET, f"budget {plan.num_tokens} of {scheduler.max_num_batched_tokens}"
        if plan.prefill_room is not None and plan.prefill_room.is_spent:
            return WaitReason.NO_BUDGET, f"{plan.num_tokens} tokens fit {plan.prefill_room.why}"
        return None

    def _situation(self, now: float) -> Situation:
        running, waiting, preempted = self._scheduler.running, self._scheduler.waiting, self._scheduler.queue.preempted
        return Situation(
            running=len(running) + len(preempted),
            waiting=len(waiting) - len(preempted),
            oldest_wait_ms=lambda: now - min(request.arrived_ms for request in waiting.values()),
            iterations_left=self._iterations_left,
        )

    def _iterations_left(self) -> int:
        """Of the running requests, if none is preempted or starved of budget."""
        chunk = self._scheduler.chunk
        return max(
            (-(-max(0, len(r.prompt_ids) - r.num_computed_tokens) // chunk) + r.params.max_tokens - len(r.output_ids)
             for r in self._scheduler.running.values()), default=0,
        )  # fmt: skip
