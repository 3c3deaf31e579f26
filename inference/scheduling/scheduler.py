"""Iteration-level scheduling (Orca, OSDI 2022): finished requests leave and waiting ones join after every token.

Knows: requests, seats, the token budget, who gives out blocks. Must not know: torch, text, the clock (moments are
handed in).

Who waits, and who of them is next, is the queue's affair (waiting_queue.py); how many may join, the policy's; why the
first in line does not, is told by admission.py.
Running requests go on in every iteration, each with one token at least; long prompts are computed in chunks beside the
decodes (Sarathi, OSDI 2024), so none waits for a prefill to end; the pace (pace.py) says how long a chunk may take.

When blocks run out, the running request of the highest rank is preempted: of those with the lowest standing (the
class that it was admitted with) the one that arrived last. It loses its blocks and waits at the head of the queue to be
computed again (vLLM's recomputation), as far as its blocks are not in the prefix cache any more. The one of the lowest
rank can therefore always go on: alone it fits, since what can never fit is refused at the door. And whoever was
preempted once stands above all who were not, the earlier arrived the higher: only the few that were preempted too and
came before can take its blocks again, and their number falls, so all end.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

from inference.scheduling.admission import Admission
from inference.scheduling.deadlines import Deadlines
from inference.scheduling.drafts import Drafting
from inference.scheduling.gate import Gate
from inference.scheduling.kv_manager import KVManager
from inference.scheduling.ledger import Waiting
from inference.scheduling.pace import Pace
from inference.scheduling.plan import Schedule, ScheduledRow
from inference.scheduling.policies import BatchingPolicy, ContinuousPolicy
from inference.scheduling.reasons import WaitingReasons
from inference.scheduling.request import Request, RequestRefused, RequestState, WaitReason
from inference.scheduling.seats import Seats
from inference.scheduling.waiting_queue import WaitingQueue

log = logging.getLogger("batchscope.engine")


class Scheduler:
    """Owns the seats and who runs; the queue owns who waits, the block pool behind `kv` the blocks.

    max_num_seqs: seats.  max_num_batched_tokens: the budget of one iteration, at least one a seat.
    prefill_chunk: tokens of one request in an iteration at most; None: half of the budget.
    """

    def __init__(
        self,
        kv: KVManager,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        policy: BatchingPolicy | None = None,
        prefill_chunk: int | None = None,
        queue: WaitingQueue | None = None,
        deadlines: Deadlines | None = None,
        pace: Pace | None = None,
        drafting: Drafting | None = None,
    ) -> None:
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError(f"a budget of {max_num_batched_tokens} tokens is too small for {max_num_seqs} seats")
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self._prefill_chunk = prefill_chunk
        self.set_budget(max_num_batched_tokens)
        self.max_model_len = max_model_len
        self.policy: BatchingPolicy = policy or ContinuousPolicy()
        self.next_policy: BatchingPolicy | None = None  # takes over when nothing runs any more
        self.queue = WaitingQueue() if queue is None else queue
        self.deadlines = deadlines or Deadlines(None, None, None)
        self.pace = pace or Pace()
        self.drafting = drafting or Drafting()
        self.running: OrderedDict[str, Request] = OrderedDict()  # by rank
        self.seats = Seats(max_num_seqs)
        self.gate = Gate()
        self._displaced: list[Request] = []  # since the last iteration
        self._reasons = WaitingReasons(self.queue)
        self._admission = Admission(self)

    @property
    def waiting(self) -> dict[str, Request]:
        return self.queue.requests

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, request: Request, now: float = 0.0) -> None:
        """Queue a request at `now`, ms. Raises RequestRefused for what can never run here."""
        prompt, answer = len(request.prompt_ids), request.params.max_tokens
        if not prompt:
            raise RequestRefused("bad_params", "the prompt is empty; at least one token is needed")
        if prompt + answer > self.max_model_len:
            raise RequestRefused(
                "prompt_too_long",
                f"the prompt has {prompt} tokens and max_tokens is {answer}: {prompt + answer} together, and the model "
                f"takes {self.max_model_len}",
            )
        self.kv.welcome(request)
        if not self.has_work:
            self.gate.forget_grants()
        self.queue.add(request, now)
        self.deadlines.arrived(request)

    def set_budget(self, tokens: int) -> None:
        """Of one iteration; `chunk`: what one prompt may take of it."""
        self.max_num_batched_tokens = tokens
        self.chunk = self._prefill_chunk or max(1, tokens // 2)

    def switch_policy(self, policy: BatchingPolicy) -> None:
        """Go on under another policy as soon as what runs now has ended; until then nobody joins. Under the one that is
        in force already there is nothing to end."""
        policy.fit(self.max_num_seqs)
        self.next_policy = None if policy.name == self.policy.name else policy
        self._switch_if_drained()

    def schedule(self, now: float = 0.0) -> Schedule:
        """Plan one iteration: who is in it, and with how many tokens. Blocks for it are allocated. `now`: ms."""
        plan = Schedule(preempted=self._take_displaced())
        if (why := self.gate.why_closed(now)) is not None:
            plan.head, plan.blocked = self.queue.head(now), (WaitReason.PAUSED, why)
            return plan
        plan.prefill_room = self._admission.prefill_room()
        self._continue_running(plan)
        self._switch_if_drained()
        room = self._admission.room(now)
        joined: list[int] = []
        while (request := self.queue.head(now)) is not None:
            plan.head, plan.blocked = request, self._admission.no_place(request, plan, room, len(joined))
            if plan.blocked:
                break
            try:
                found = self.kv.find(request)
            except Exception:
                log.exception("scheduling_failed: one request fails")
                plan.broken.append(request)
                self.remove(request)
                continue
            plan.blocked = self._admission.no_room(request, found, plan)
            if plan.blocked:
                break
            if request.started_ms is None:
                joined.append(len(request.prompt_ids))
            self._admit(request, found, plan, now)
        else:
            plan.head = plan.blocked = None
        is_forming = plan.blocked is not None and plan.blocked[0] is WaitReason.NO_BUDGET
        plan.padding = self.policy.joined(joined, is_forming)
        self.drafting.extend(plan, self.kv, self.max_num_batched_tokens)
        if plan.rows:
            self.gate.begin(now)
        return plan

    def commit(self, plan: Schedule) -> None:
        """The iteration was computed. New tokens are to be appended and ended requests removed after this.

        Drafts do not count yet: each one that turns out right is to be accepted, then all of them settled.
        """
        for request, start, count, _, drafts in plan.rows:
            request.num_computed_tokens = start + count - len(drafts)
            self.kv.computed(request, start)
        self.queue.charge_answers(row.request for row in plan.rows if row.samples)

    def accept(self, request: Request) -> None:
        """The newest token, just appended, is what was drafted: it is computed already, and the next one is sampled."""
        start = request.num_computed_tokens
        request.num_computed_tokens += 1
        self.kv.computed(request, start)
        self.queue.charge_answers([request])

    def settle(self, row: ScheduledRow, accepted: int) -> None:
        """So many of a row's drafts were right. The others are dropped without a trace: blocks behind what is computed
        are given back."""
        request = row.request
        if request.state is RequestState.RUNNING:
            self.kv.trim(request)
        if request.lookup is not None:
            request.lookup.learn(len(row.drafts), accepted)

    def remove(self, request: Request) -> None:
        """A request that finished, was cancelled or failed: its blocks are free from now on, and its seat is, too,
        unless the policy holds it."""
        if request.state is RequestState.RUNNING:
            del self.running[request.request_id]
            wanted = len(self.queue.preempted)  # seats for members of the batch that have none
            self._release(request, idle=self.policy.holds_seats and self.seats.free_count >= wanted)
            self.queue.ended(request)
        elif request.state is RequestState.WAITING:
            self.queue.remove(request)
        if not self._batch_goes_on():
            self.seats.free_idle()
            self._switch_if_drained()  # there may be no next iteration for a long time
        request.state = RequestState.FINISHED

    def preempt(self, request: Request) -> None:
        """Take blocks and seat from a running request. It waits at the head of the queue and is computed anew."""
        del self.running[request.request_id]
        self._release(request)
        request.state = RequestState.WAITING
        request.lost_at = max(request.lost_at, request.num_computed_tokens)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.queue.put_back(request)

    def displace(self, request: Request) -> None:
        """Preempt it between two iterations; the next one tells of it."""
        self.preempt(request)
        self._displaced.append(request)

    def wakes_at(self, now: float) -> float:
        """When the next iteration can have something to do, in ms: `now` itself, or a later moment at which a batch
        has filled for long enough, a request expires, or the gate opens."""
        if (opens := self.gate.opens_at(now)) > now:
            return min(opens, self.deadlines.next_ms())
        if self._batch_goes_on() or not self.waiting or self.next_policy is not None:
            return now
        return min(now + self._admission.opens_in_ms(now), self.deadlines.next_ms())

    def waiting_reasons(self, plan: Schedule) -> tuple[Waiting, ...]:
        """The first waiting requests, each with the reason why it is not in the iteration that was just planned."""
        return self._reasons.of(plan)

    def _batch_goes_on(self) -> bool:
        return bool(self.running or self.queue.preempted)

    def _switch_if_drained(self) -> None:
        if self.next_policy is not None and not self._batch_goes_on():
            self.policy, self.next_policy = self.next_policy, None

    def _take_displaced(self) -> list[Request]:
        """Those who still wait for having been displaced."""
        displaced, self._displaced = self._displaced, []
        return [request for request in displaced if request.state is RequestState.WAITING]

    def _continue_running(self, plan: Schedule) -> None:
        """Give every running request its tokens, by rank, and preempt from the other end where blocks run out."""
        for request in list(self.running.values()):
            if request.state is not RequestState.RUNNING:
                break  # preempted for one of those before it, and so are all after it
            after = len(self.running) - len(plan.rows) - 1  # each of them gets a token, too
            count = self._tokens_now(request, plan, after)
            while not self.kv.grow(request, count):
                victim = next(reversed(self.running.values()))
                self.preempt(victim)
                plan.preempted.append(victim)
                if victim is request:
                    break
            else:
                self._put(request, count, plan)

    def _admit(self, request: Request, found: list[int], plan: Schedule, now: float) -> None:
        self.kv.begin(request, found)
        self.queue.admit(request, max(0, len(request.prompt_ids) - request.num_computed_tokens))
        if request.started_ms is None:
            request.started_ms = now
            request.num_cached_tokens = min(request.num_computed_tokens, len(request.prompt_ids))
            self.deadlines.started(request, now)
        request.state = RequestState.RUNNING
        plan.joined.append(request)
        request.seat = self.seats.take()
        last = next(reversed(self.running.values()), None)
        self.running[request.request_id] = request
        if last is not None and request.rank < last.rank:
            self.running = OrderedDict(sorted(self.running.items(), key=lambda item: item[1].rank))
        count = self._tokens_now(request, plan, 0)
        self.kv.must_grow(request, count)
        self._put(request, count, plan)

    def _put(self, request: Request, count: int, plan: Schedule) -> None:
        start = request.num_computed_tokens
        plan.rows.append(ScheduledRow(request, start, count, start + count == request.num_tokens))
        plan.num_tokens += count
        plan.promised += max(0, self.kv.will_need(request) - len(request.block_table))

    def _tokens_now(self, request: Request, plan: Schedule, after: int) -> int:
        left = self.max_num_batched_tokens - plan.num_tokens - after
        count = min(request.num_tokens - request.num_computed_tokens, self.chunk, left)
        if plan.prefill_room is None or not request.in_prefill:
            return count
        return plan.prefill_room.take(request.num_computed_tokens, count)

    def _release(self, request: Request, idle: bool = False) -> None:
        self.kv.release(request)
        self.seats.give_back(request.seat, idle)
        request.seat = -1
