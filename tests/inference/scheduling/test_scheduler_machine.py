"""The scheduler under any sequence of arrivals, iterations and departures."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inference.config import SamplingParams
from inference.scheduling.blocks import BlockPool
from inference.scheduling.plan import Schedule
from inference.scheduling.request import Request, RequestRefused, RequestState
from inference.scheduling.scheduler import Scheduler


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        block_size=st.sampled_from([1, 2, 4, 16]),
        blocks=st.integers(1, 24),
        seats=st.integers(1, 5),
        spare=st.integers(0, 20),
        chunk=st.sampled_from([None, 1, 3, 7]),
    )
    def start(self, block_size: int, blocks: int, seats: int, spare: int, chunk: int | None) -> None:
        self.pool = BlockPool(blocks, block_size)
        self.scheduler = Scheduler(self.pool, seats, seats + spare, 400, prefill_chunk=chunk)
        self.all: list[Request] = []  # in order of arrival
        self.most_steps = 0

    @rule(prompt=st.integers(1, 60), answer=st.integers(1, 20), done=st.integers(0, 19))
    def arrive(self, prompt: int, answer: int, done: int) -> None:
        output = [9] * min(done, answer - 1)  # some are resumed
        request = Request(
            f"r{len(self.all)}", [7] * prompt, SamplingParams(max_tokens=answer), 0, output_ids=output
        )  # fmt: skip
        fits = self.pool.blocks_for(prompt + answer - 1) <= self.pool.num_blocks
        try:
            self.scheduler.add(request)
        except RequestRefused:
            assert not fits
        else:
            assert fits
            self.all.append(request)
            self.most_steps += prompt + answer

    @rule()
    def iterate(self) -> None:
        scheduler = self.scheduler
        oldest = next((r for r in self.all if r.state is not RequestState.FINISHED), None)
        before = oldest.num_computed_tokens if oldest else 0
        plan = scheduler.schedule()
        self.check_plan(plan)
        scheduler.commit(plan)
        if oldest:
            assert oldest.num_computed_tokens > before, "the oldest always goes on"
        for row in plan.rows:
            if row.samples:
                row.request.output_ids.append(9)
                if len(row.request.output_ids) == row.request.params.max_tokens:
                    scheduler.remove(row.request)

    @precondition(lambda self: any(r.state is not RequestState.FINISHED for r in self.all))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        there = [r for r in self.all if r.state is not RequestState.FINISHED]
        self.scheduler.remove(data.draw(st.sampled_from(there)))

    @precondition(lambda self: self.scheduler.running)
    @rule()
    def preempt_the_newest(self) -> None:
        self.scheduler.preempt(next(reversed(self.scheduler.running.values())))

    def check_plan(self, plan: Schedule) -> None:
        scheduler = self.scheduler
        assert plan.num_tokens == sum(row.num_tokens for row in plan.rows) <= scheduler.max_num_batched_tokens
        assert [row.request for row in plan.rows] == list(scheduler.running.values())
        assert not {row.request.request_id for row in plan.rows} & {r.request_id for r in plan.preempted}
        for request, start, tokens, samples in plan.rows:
            assert tokens >= 1
            assert start == request.num_computed_tokens
            assert len(request.block_table) >= self.pool.blocks_for(start + tokens)
            assert samples == (start + tokens == request.num_tokens)
        reasons = scheduler.waiting_reasons(plan)
        assert [waiting.request_id for waiting in reasons] == list(scheduler.waiting)
        assert all(waiting.reason and waiting.detail for waiting in reasons)

    @invariant()
    def each_request_is_in_one_state(self) -> None:
        running, waiting = self.scheduler.running, self.scheduler.waiting
        for request in self.all:
            assert (request.request_id in running) == (request.state is RequestState.RUNNING)
            assert (request.request_id in waiting) == (request.state is RequestState.WAITING)
            if request.state is not RequestState.RUNNING:
                assert (request.block_table, request.seat) == ([], -1)
        order = {request.request_id: place for place, request in enumerate(self.all)}
        places = [order[name] for name in (*running, *waiting)]
        assert places == sorted(places), "first come, first served"

    @invariant()
    def seats_and_blocks_are_kept(self) -> None:
        running = self.scheduler.running.values()
        seats = [request.seat for request in running]
        assert len(set(seats)) == len(seats) <= self.scheduler.max_num_seqs
        assert all(0 <= seat < self.scheduler.max_num_seqs for seat in seats)
        held = [block for request in running for block in request.block_table]
        assert len(held) == len(set(held)) == self.pool.held_count
        self.pool.check()

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        steps = 0
        while self.scheduler.has_work:
            self.iterate()
            steps += 1
            assert steps <= self.most_steps
        assert self.pool.free_count == self.pool.num_blocks
        for request in self.all:
            assert request.state is RequestState.FINISHED


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
