"""Iteration-level scheduling (Orca, OSDI 2022): finished requests leave and waiting ones join after every token.

Knows: requests, seats, the token budget, the block pool. Must not know: torch, text, the clock.

Order: first come, first served; nobody is skipped. Running requests come first, oldest first, each with at least one
token of the budget; long prompts are prefilled in chunks beside them. When blocks run out the latest-arrived running
request is preempted: it loses its blocks and waits at the head of the queue to be computed again. The oldest one can
therefore always go on: alone it fits, since what can never fit is refused at the door.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice

from inference.scheduling.blocks import BlockPool
from inference.scheduling.ledger import WAITING_SHOWN, Waiting
from inference.scheduling.policies import BatchingPolicy, ContinuousPolicy
from inference.scheduling.request import Request, RequestRefused, RequestState, WaitReason


@dataclass(frozen=True, slots=True)
class ScheduledRow:
    """One request's part in the iteration: positions start..start + num_tokens - 1 are computed."""

    request: Request
    start: int
    num_tokens: int
    samples: bool  # its last known token is computed, so the next one is sampled


@dataclass(slots=True)
class Schedule:
    """One iteration's plan."""

    rows: list[ScheduledRow] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    blocked: tuple[WaitReason, str] | None = None  # why the head of the queue could not join

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)


class Scheduler:
    """Owns the queues and the seats; the block pool owns the blocks."""

    def __init__(
        self,
        pool: BlockPool,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        policy: BatchingPolicy | None = None,
    ) -> None:
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.policy = policy or ContinuousPolicy()
        self.running: OrderedDict[str, Request] = OrderedDict()  # oldest first
        self.waiting: OrderedDict[str, Request] = OrderedDict()  # all of them arrived after all running ones
        self._free_seats = list(range(max_num_seqs))

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestRefused for what can never run here."""
        prompt, answer = len(request.prompt_ids), request.params.max_tokens
        if not prompt:
            raise RequestRefused("bad_params", "the prompt is empty; at least one token is needed")
        if prompt + answer > self.max_model_len:
            raise RequestRefused(
                "prompt_too_long",
                f"the prompt has {prompt} tokens and max_tokens is {answer}: {prompt + answer} together, "
                f"and the model takes {self.max_model_len}",
            )
        needed = self.pool.blocks_for(request.max_total_tokens)
        if needed > self.pool.num_blocks:
            raise RequestRefused(
                "prompt_too_long",
                f"the prompt has {prompt} tokens and max_tokens is {answer}: that can need {needed} KV blocks, "
                f"and there are {self.pool.num_blocks}",
            )
        self.waiting[request.request_id] = request

    def schedule(self) -> Schedule:
        """Plan one iteration: who is in it, and with how many tokens. Blocks for it are allocated."""
        plan = Schedule()
        self._continue_running(plan)
        while self.waiting:
            request = next(iter(self.waiting.values()))
            plan.blocked = self._why_not(request, plan)
            if plan.blocked:
                break
            self._admit(request, plan)
        return plan

    def remove(self, request: Request) -> None:
        """A request that finished, was cancelled or failed: its seat and its blocks are free from now on."""
        if request.state is RequestState.RUNNING:
            del self.running[request.request_id]
            self._release(request)
        elif request.state is RequestState.WAITING:
            del self.waiting[request.request_id]
        request.state = RequestState.FINISHED

    def waiting_reasons(self, plan: Schedule) -> tuple[Waiting, ...]:
        """The first waiting requests, each with the reason why it is not in the iteration."""
        if plan.blocked is None:
            return ()
        reason, detail = plan.blocked
        head = next(iter(self.waiting), "")
        return tuple(
            Waiting(request_id, str(reason), detail)
            if place == 0
            else Waiting(request_id, str(WaitReason.BEHIND), f"behind {head[:8]}, {place} ahead")
            for place, request_id in enumerate(islice(self.waiting, WAITING_SHOWN))
        )

    def _continue_running(self, plan: Schedule) -> None:
        """Give every running request its tokens, oldest first, and preempt from the other end where blocks run out."""
        budget = self.max_num_batched_tokens
        still_to_serve = len(self.running)
        for request in list(self.running.values()):
            if request.state is not RequestState.RUNNING:
                continue  # preempted for one of those before it
            still_to_serve -= 1
            count = min(request.num_tokens - request.num_computed_tokens, budget - still_to_serve)
            while not self._grow(request, count):
                victim = next(reversed(self.running.values()))
                self._preempt(victim, plan)
                if victim is request:
                    break
                still_to_serve -= 1
            if request.state is RequestState.RUNNING:
                self._put(request, count, plan)
                budget -= count

    def _why_not(self, request: Request, plan: Schedule) -> tuple[WaitReason, str] | None:
        """Why this one, the first in line, can't join now; None if it can."""
        closed = self.policy.closed_because(len(self.running), len(self.waiting))
        if closed is not None:
            return WaitReason.POLICY, closed
        if len(self.running) >= self.max_num_seqs:
            return WaitReason.NO_SEAT, f"seats {len(self.running)} of {self.max_num_seqs}"
        needed, free = self.pool.blocks_for(request.num_tokens), self.pool.free_count
        if plan.preempted or needed > free - self._spoken_for():
            spoken_for = free - max(0, free - self._spoken_for())
            running = f", {spoken_for} of them for those running" if spoken_for else ""
            return WaitReason.NO_KV, f"needs {needed} blocks, {free} free{running}"
        if plan.num_tokens >= self.max_num_batched_tokens:
            return WaitReason.NO_BUDGET, f"budget {plan.num_tokens} of {self.max_num_batched_tokens}"
        return None

    def _spoken_for(self) -> int:
        """Free blocks that running requests will ask for soon: the rest of their prompts, and one each to grow into.

        Admitting into these would preempt the newcomer within a few iterations, and its prefill would be for nothing.
        """
        blocks_for = self.pool.blocks_for
        return sum(1 + max(0, blocks_for(r.num_tokens) - len(r.block_table)) for r in self.running.values())

    def _admit(self, request: Request, plan: Schedule) -> None:
        del self.waiting[request.request_id]
        request.state = RequestState.RUNNING
        request.seat = heapq.heappop(self._free_seats)
        self.running[request.request_id] = request
        count = min(request.num_tokens, self.max_num_batched_tokens - plan.num_tokens)
        self._grow(request, count)  # always fits: _why_not has seen to it
        self._put(request, count, plan)

    def _put(self, request: Request, count: int, plan: Schedule) -> None:
        start = request.num_computed_tokens
        plan.rows.append(ScheduledRow(request, start, count, start + count == request.num_tokens))

    def _grow(self, request: Request, count: int) -> bool:
        """Allocate what `count` more positions need. False, and nothing changed, where the pool has too little."""
        missing = self.pool.blocks_for(request.num_computed_tokens + count) - len(request.block_table)
        if missing <= 0:
            return True
        blocks = self.pool.allocate(missing)
        if blocks is None:
            return False
        request.block_table += blocks
        return True

    def _preempt(self, request: Request, plan: Schedule) -> None:
        del self.running[request.request_id]
        self._release(request)
        request.state = RequestState.WAITING
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.waiting[request.request_id] = request
        self.waiting.move_to_end(request.request_id, last=False)
        plan.preempted.append(request)

    def _release(self, request: Request) -> None:
        self.pool.free(request.block_table)
        request.block_table = []
        heapq.heappush(self._free_seats, request.seat)
        request.seat = -1
