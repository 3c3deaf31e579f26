"""The scheduler under any sequence of arrivals, iterations and departures: users, priorities, policies, prefixes."""

from collections import Counter
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.iterations import check_drafts, check_map, check_traces_of_drafts, complete

from inference.checks import ParameterError
from inference.config import POLICIES, SamplingParams
from inference.scheduling.block_map import BlockMap
from inference.scheduling.blocks import BlockPool
from inference.scheduling.drafts import Drafting
from inference.scheduling.kv_manager import KVManager
from inference.scheduling.pace import Pace
from inference.scheduling.plan import Schedule
from inference.scheduling.policies import make_policy
from inference.scheduling.request import Request, RequestRefused, RequestState
from inference.scheduling.resize import limits_of, set_limits
from inference.scheduling.scheduler import Scheduler
from inference.scheduling.waiting_queue import WaitingQueue

AGEING, STEP = 400.0, 50.0  # ms: a class is worth eight iterations


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        block_size=st.sampled_from([1, 2, 4, 16]),
        blocks=st.integers(1, 24),
        seats=st.integers(1, 5),
        spare=st.integers(0, 20),
        chunk=st.sampled_from([None, 1, 3, 7]),
        policy=st.sampled_from(POLICIES),
        cap=st.sampled_from([None, 1, 2]),
        caching=st.booleans(),
        gap=st.sampled_from([None, 4.0, 30.0]),
        drafts=st.sampled_from([0, 1, 3, 16]),
        draft_rows=st.sampled_from([1, 4, 8, 30]),
        rhythm=st.sampled_from([1, 3, 5, 100]),
    )
    def start(
        self,
        block_size: int,
        blocks: int,
        seats: int,
        spare: int,
        chunk: int | None,
        policy: str,
        cap: int | None,
        caching: bool,
        gap: float | None,
        drafts: int,
        draft_rows: int,
        rhythm: int,
    ) -> None:
        self.pool = BlockPool(blocks, block_size)
        self.map = BlockMap()  # as records tell it
        self.seats = seats
        self.scheduler = Scheduler(
            KVManager(self.pool, caching),
            seats,
            seats + spare,
            400,
            make_policy(policy, max(1, seats - 1), 3 * STEP),
            chunk,
            WaitingQueue(AGEING, cap),
            pace=Pace(gap),
            drafting=Drafting(drafts, draft_rows),
        )
        self.most = limits_of(self.scheduler)
        self.rhythm = rhythm  # of answers: the shorter, the better they can be guessed
        self.cap = cap
        self.all: list[Request] = []  # in order of arrival
        self.most_steps = 50
        self.now = 0.0
        self.batch: set[str] = set()  # of a static or dynamic policy

    @rule(
        prompt=st.integers(1, 60),
        answer=st.integers(1, 20),
        done=st.integers(0, 19),
        letter=st.sampled_from([7, 7, 8]),
        user=st.sampled_from(["a", "a", "b", ""]),
        priority=st.sampled_from([0, 0, 0, -2, 2]),
    )
    def arrive(self, prompt: int, answer: int, done: int, letter: int, user: str, priority: int) -> None:
        output = [9] * min(done, answer - 1)  # some are resumed
        params = SamplingParams(max_tokens=answer, priority=priority)
        name = f"r{len(self.all)}"
        request = Request(name, [letter] * prompt, params, 0, user, output_ids=output, arrived_ms=self.now)
        fits = self.pool.blocks_for(prompt + answer - 1) <= self.pool.num_blocks
        try:
            self.scheduler.add(request, self.now)
        except RequestRefused:
            assert not fits
        else:
            assert fits
            self.all.append(request)
            self.most_steps += 2 * (prompt + answer) + 4

    @rule()
    def iterate(self) -> None:
        scheduler = self.scheduler
        self.now += STEP
        if scheduler.gate.opens_at(self.now) > self.now:
            self.find_it_closed()
            return
        first = next(iter(scheduler.running.values()), None)
        before = first.num_computed_tokens if first else 0
        was_running = dict(scheduler.running)
        plan = scheduler.schedule(self.now)
        self.check_plan(plan)
        self.check_joining(plan, was_running)
        scheduler.pace.costs.observe(plan.load(), 2.0 + plan.num_tokens)
        complete(scheduler, plan, self.next_token)
        check_traces_of_drafts(scheduler)
        if first:
            assert first.num_computed_tokens > before, "the one of the lowest rank always goes on"
        if self.unfinished() and not plan.rows and not plan.preempted:
            assert scheduler.wakes_at(self.now) > self.now, "nothing ran, and it does not say until when"

    @precondition(lambda self: self.unfinished())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.scheduler.remove(data.draw(st.sampled_from(self.unfinished())))

    @precondition(lambda self: self.scheduler.running)
    @rule()
    def preempt_the_last(self) -> None:
        self.scheduler.preempt(next(reversed(self.scheduler.running.values())))

    @precondition(lambda self: self.scheduler.running)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        """What it computed is bad and is never to be found again."""
        request = data.draw(st.sampled_from(list(self.scheduler.running.values())))
        self.pool.forget(request.block_table)
        self.scheduler.remove(request)

    @rule()
    def forget_all(self) -> None:
        self.pool.clear_cache()

    @rule(policy=st.sampled_from(POLICIES))
    def switch(self, policy: str) -> None:
        self.scheduler.switch_policy(make_policy(policy, max(1, self.seats - 1), 3 * STEP))

    @rule(action=st.sampled_from(["pause", "resume", "resume", "grant"]))
    def turn_the_gate(self, action: str) -> None:
        gate = self.scheduler.gate
        if action != "grant" or gate.paused:
            getattr(gate, action)()

    @rule(ms=st.sampled_from([0.0, 0.0, 3.5 * STEP]))
    def slow(self, ms: float) -> None:
        self.scheduler.gate.slow_ms = ms

    def find_it_closed(self) -> None:
        """Nothing is computed, nobody moves, everybody who waits knows why, and it is not asked again and again."""
        scheduler, most = self.scheduler, self.now + 4 * STEP
        running = [(r.request_id, r.seat, list(r.block_table)) for r in scheduler.running.values()]
        plan = scheduler.schedule(self.now)
        assert not plan.rows
        reasons = scheduler.waiting_reasons(plan)
        assert {waiting.request_id for waiting in reasons} == scheduler.waiting.keys()
        assert {waiting.reason for waiting in reasons} <= {"paused"}
        assert running == [(r.request_id, r.seat, r.block_table) for r in scheduler.running.values()]
        assert self.now < scheduler.wakes_at(self.now)
        assert scheduler.gate.paused or scheduler.wakes_at(self.now) <= most

    @rule(seats=st.integers(1, 5), spare=st.integers(0, 20), blocks=st.integers(1, 24))
    def set_limits(self, seats: int, spare: int, blocks: int) -> None:
        most, scheduler = self.most, self.scheduler
        seats, blocks = min(seats, most.max_num_seqs), min(blocks, most.kv_blocks)
        budget = min(seats + spare, most.max_num_batched_tokens)
        values = {"max_num_seqs": seats, "max_num_batched_tokens": budget, "kv_blocks": blocks}
        needed = max((self.pool.blocks_for(r.max_total_tokens) for r in self.unfinished()), default=0)
        before, was_running = limits_of(scheduler), dict(scheduler.running)
        wanted = before.changed(most, values)
        try:
            set_limits(scheduler, wanted)
        except ParameterError:
            assert needed > blocks
            assert (limits_of(scheduler), dict(scheduler.running)) == (before, was_running)
            return
        assert needed <= blocks
        assert limits_of(scheduler) == wanted
        displaced = [r for name, r in was_running.items() if name not in scheduler.running]
        assert bool(displaced) <= (seats < before.max_num_seqs or blocks < before.kv_blocks)
        self.most_steps += sum(2 * r.num_tokens + 4 for r in displaced)

    def unfinished(self) -> list[Request]:
        return [r for r in self.all if r.state is not RequestState.FINISHED]

    def check_plan(self, plan: Schedule) -> None:
        scheduler = self.scheduler
        assert plan.num_tokens == sum(row.num_tokens for row in plan.rows) <= scheduler.max_num_batched_tokens
        assert {row.request.request_id for row in plan.rows} == scheduler.running.keys()
        assert len(plan.rows) == len(scheduler.running)
        assert not {row.request.request_id for row in plan.rows} & {r.request_id for r in plan.preempted}
        written: Counter[int] = Counter()
        held = Counter(block for row in plan.rows for block in row.request.block_table)
        check_drafts(scheduler, plan)
        for request, start, tokens, samples, drafts in plan.rows:
            assert tokens - len(drafts) >= 1
            assert start == request.num_computed_tokens
            assert len(request.block_table) >= self.pool.blocks_for(start + tokens)
            assert samples == (start + tokens - len(drafts) == request.num_tokens)
            size = self.pool.block_size
            written.update({request.block_table[p // size] for p in range(start, start + tokens)})
        assert all(held[block] == 1 for block in written), "a block is written that another one reads"
        reasons = scheduler.waiting_reasons(plan)
        assert {waiting.request_id for waiting in reasons} == scheduler.waiting.keys()
        assert all(waiting.reason and waiting.detail for waiting in reasons)
        if plan.head:
            assert any((w.request_id, w.reason) == (plan.head.request_id, plan.blocked[0]) for w in reasons)
        else:
            assert {waiting.reason for waiting in reasons} <= {"user_cap"}

    def next_token(self, request: Request) -> int:
        return 9 if len(request.output_ids) ** 2 % self.rhythm else 3

    def check_joining(self, plan: Schedule, was_running: dict[str, Request]) -> None:
        scheduler = self.scheduler
        if self.cap:
            users = Counter(r.user for r in scheduler.running.values() if r.user)
            assert all(count <= self.cap for count in users.values())
        if not scheduler.policy.holds_seats:
            assert not scheduler.seats.idle
            return
        joined = {row.request.request_id for row in plan.rows} - was_running.keys()
        if not was_running and not self.batch & {r.request_id for r in self.unfinished()}:
            self.batch = set()
        self.batch |= joined
        # The policy was switched only when nothing ran, so a batch never has more members than its size.
        assert len(self.batch & {r.request_id for r in self.unfinished()}) <= self.seats

    @invariant()
    def each_request_is_in_one_state(self) -> None:
        running, waiting = self.scheduler.running, self.scheduler.waiting
        for request in self.all:
            assert (request.request_id in running) == (request.state is RequestState.RUNNING)
            assert (request.request_id in waiting) == (request.state is RequestState.WAITING)
            if request.state is not RequestState.RUNNING:
                assert (request.block_table, request.seat) == ([], -1)

    @invariant()
    def the_order_is_kept(self) -> None:
        scheduler = self.scheduler
        ranks = [request.rank for request in scheduler.running.values()]
        assert ranks == sorted(ranks)
        order = scheduler.queue.first_ones()
        assert len(order) == len(scheduler.waiting) == len(scheduler.queue)
        for one, other in pairwise([r for r in order if r not in scheduler.queue.preempted]):
            if (one.user, one.params.priority) == (other.user, other.params.priority):
                assert one.ticket < other.ticket, "first come, first served"

    @invariant()
    def seats_and_blocks_are_kept(self) -> None:
        running = self.scheduler.running.values()
        seats = [request.seat for request in running] + self.scheduler.seats.idle
        assert len(set(seats)) == len(seats) <= self.scheduler.max_num_seqs
        assert all(0 <= seat < self.scheduler.max_num_seqs for seat in seats)
        assert running or self.scheduler.queue.preempted or not self.scheduler.seats.idle
        held = Counter(block for request in running for block in request.block_table)
        assert len(held) == self.pool.held_count
        assert all(self.pool.references(block) == count for block, count in held.items())
        assert all(len(set(request.block_table)) == len(request.block_table) for request in running)
        self.pool.check()

    @invariant()
    def the_map_follows(self) -> None:
        """What changes tell is the pool's state, in a map that went on from a keyframe, too."""
        self.map.apply(self.scheduler.kv.changes(), self.pool.num_blocks)
        check_map(self.map, self.pool, self.scheduler.running.values())
        self.map = BlockMap.of_keyframe(*self.map.keyframe())

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        steps = 0
        self.scheduler.gate.resume()
        self.scheduler.gate.slow_ms = 0.0
        while self.scheduler.has_work:
            self.iterate()
            steps += 1
            assert steps <= self.most_steps
        assert self.pool.available_count == self.pool.num_blocks
        assert not self.scheduler.seats.idle
        self.pool.clear_cache()
        assert self.pool.free_count == self.pool.num_blocks
        assert not self.unfinished()
        assert self.scheduler.queue.shares.is_empty, "no user is still said to have requests here"


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, report_multiple_bugs=False)
