"""Iteration-level scheduling (Orca, OSDI 2022): finished requests leave and waiting ones join after every token.

Knows: requests, seats, the token budget, the block pool. Must not know: torch, text, the clock.

Order: first come, first served; nobody is skipped. Running requests come first, oldest first, and each goes on in every
iteration; long prompts are computed in chunks beside the decodes (Sarathi, OSDI 2024), so none waits for a prefill.
When blocks run out, the running request that arrived last is preempted: it loses its blocks and waits at the head of
the queue to be computed again (vLLM's recomputation). The oldest one can therefore always go on: alone it fits, since
what can never fit is refused at the door. So every iteration brings the oldest nearer to its end, and all of them end.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from itertools import islice

from inference.scheduling.blocks import BlockPool, PoolError
from inference.scheduling.ledger import WAITING_SHOWN, Waiting
from inference.scheduling.plan import Schedule, ScheduledRow
from inference.scheduling.policies import BatchingPolicy, ContinuousPolicy
from inference.scheduling.request import Request, RequestRefused, RequestState, WaitReason


class Scheduler:
    """Owns the queues and the seats; the block pool owns the blocks.

    max_num_seqs: seats.  max_num_batched_tokens: the budget of one iteration, at least one a seat.
    prefill_chunk: tokens of one request in an iteration at most; None: as many as the budget has.
    """

    def __init__(
        self,
        pool: BlockPool,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        policy: BatchingPolicy | None = None,
        prefill_chunk: int | None = None,
    ) -> None:
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError(f"a budget of {max_num_batched_tokens} tokens is too small for {max_num_seqs} seats")
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.policy = policy or ContinuousPolicy()
        self.running: OrderedDict[str, Request] = OrderedDict()  # oldest first
        self.waiting: OrderedDict[str, Request] = OrderedDict()  # all of them arrived after all running ones
        self._chunk = prefill_chunk or max_num_batched_tokens
        self._free_seats = list(range(max_num_seqs))
        self._behind: tuple[Waiting, ...] | None = None  # kept while the queue's first places stay as they are

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestRefused for what can never run here."""
        prompt, answer = len(request.prompt_ids), request.params.max_tokens
        if not prompt:
            raise RequestRefused("bad_params", "the prompt is empty; at least one token is needed")
        length = f"the prompt has {prompt} tokens and max_tokens is {answer}"
        if prompt + answer > self.max_model_len:
            raise RequestRefused(
                "prompt_too_long", f"{length}: {prompt + answer} together, and the model takes {self.max_model_len}"
            )
        needed, total = self.pool.blocks_for(request.max_total_tokens), self.pool.num_blocks
        if needed > total:
            raise RequestRefused(
                "prompt_too_long", f"{length}: that can need {needed} KV blocks, and there are {total}"
            )
        self.waiting[request.request_id] = request
        if len(self.waiting) <= WAITING_SHOWN:
            self._behind = None

    def schedule(self) -> Schedule:
        """Plan one iteration: who is in it, and with how many tokens. Blocks for it are allocated."""
        plan = Schedule()
        self._continue_running(plan)
        closed = self.policy.closed_because(len(self.running), len(self.waiting))
        while self.waiting:
            request = next(iter(self.waiting.values()))
            plan.blocked = (WaitReason.POLICY, closed) if closed else self._why_not(request, plan)
            if plan.blocked:
                break
            self._admit(request, plan)
        return plan

    def commit(self, plan: Schedule) -> None:
        """The iteration was computed. New tokens are to be appended and ended requests removed after this."""
        for row in plan.rows:
            row.request.num_computed_tokens += row.num_tokens

    def remove(self, request: Request) -> None:
        """A request that finished, was cancelled or failed: its seat and its blocks are free from now on."""
        if request.state is RequestState.RUNNING:
            del self.running[request.request_id]
            self._release(request)
        elif request.state is RequestState.WAITING:
            del self.waiting[request.request_id]
            self._behind = None
        request.state = RequestState.FINISHED

    def preempt(self, request: Request) -> None:
        """Take blocks and seat from a running request. It waits at the head of the queue and is computed anew."""
        del self.running[request.request_id]
        self._release(request)
        request.state = RequestState.WAITING
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.waiting[request.request_id] = request
        self.waiting.move_to_end(request.request_id, last=False)
        self._behind = None

    def waiting_reasons(self, plan: Schedule) -> tuple[Waiting, ...]:
        """The first waiting requests, each with the reason why it is not in the iteration."""
        if plan.blocked is None or not self.waiting:
            return ()
        reason, detail = plan.blocked
        head = next(iter(self.waiting))
        if self._behind is None:
            others = enumerate(islice(self.waiting, 1, WAITING_SHOWN), 1)
            behind = str(WaitReason.BEHIND)
            self._behind = tuple(Waiting(name, behind, f"behind {head[:8]}, {place} ahead") for place, name in others)
        return (Waiting(head, str(reason), detail), *self._behind)

    def _continue_running(self, plan: Schedule) -> None:
        """Give every running request its tokens, oldest first, and preempt from the other end where blocks run out.

        There is budget for all: what one takes never grows, except for the newest one's share, and nobody joined
        unless something was left.
        """
        for request in list(self.running.values()):
            if request.state is not RequestState.RUNNING:
                break  # preempted for one of those before it, and so are all after it
            count = self._tokens_now(request, plan)
            while not self._grow(request, count):
                victim = next(reversed(self.running.values()))
                self.preempt(victim)
                plan.preempted.append(victim)
                if victim is request:
                    break
            else:
                self._put(request, count, plan)

    def _why_not(self, request: Request, plan: Schedule) -> tuple[WaitReason, str] | None:
        """Why this one, the first in line, can't join now; None if it can."""
        if len(self.running) >= self.max_num_seqs:
            return WaitReason.NO_SEAT, f"seats {len(self.running)} of {self.max_num_seqs}"
        needed, free = self._will_need(request), self.pool.free_count
        if needed > free - plan.promised:
            kept = f", {min(free, plan.promised)} of them kept for those running" if plan.promised else ""
            return WaitReason.NO_KV, f"needs {needed} blocks, {free} free{kept}"
        if plan.num_tokens >= self.max_num_batched_tokens:
            return WaitReason.NO_BUDGET, f"budget {plan.num_tokens} of {self.max_num_batched_tokens}"
        return None

    def _admit(self, request: Request, plan: Schedule) -> None:
        del self.waiting[request.request_id]
        self._behind = None
        request.state = RequestState.RUNNING
        request.seat = heapq.heappop(self._free_seats)
        self.running[request.request_id] = request
        count = self._tokens_now(request, plan)
        if not self._grow(request, count):
            raise PoolError(f"request {request.request_id} was admitted, and its blocks are not there")
        self._put(request, count, plan)

    def _put(self, request: Request, count: int, plan: Schedule) -> None:
        start = request.num_computed_tokens
        plan.rows.append(ScheduledRow(request, start, count, start + count == request.num_tokens))
        plan.num_tokens += count
        plan.promised += max(0, self._will_need(request) - len(request.block_table))

    def _tokens_now(self, request: Request, plan: Schedule) -> int:
        left = self.max_num_batched_tokens - plan.num_tokens
        return min(request.num_tokens - request.num_computed_tokens, self._chunk, left)

    def _will_need(self, request: Request) -> int:
        """Blocks for all it has to compute now and one to grow into, but never more than it can come to need.

        Nobody is admitted into blocks that running requests will need so soon: the newcomer would be preempted within a
        few iterations, and its prefill would have been for nothing.
        """
        return self.pool.blocks_for(min(request.num_tokens + self.pool.block_size, request.max_total_tokens))

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

    def _release(self, request: Request) -> None:
        self.pool.free(request.block_table)
        request.block_table = []
        heapq.heappush(self._free_seats, request.seat)
        request.seat = -1
