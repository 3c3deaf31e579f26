"""Forward passes: the batch of a planned iteration is built and computed, its tokens are drawn and taken.

Knows: builder, runner, sampler, whose token is whose, who fails alone. Must not know: how an iteration is planned, who
arrives, the ledger.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from inference.config import EngineConfig
from inference.draws import Draw, draws_of, logits_of
from inference.execution.batch import Batch
from inference.execution.batch_builder import BatchBuilder
from inference.execution.isolated_builder import IsolatedBuilder
from inference.execution.isolated_sampler import FAILED, IsolatedSampler
from inference.execution.models.protocol import Model
from inference.execution.runner import ModelRunner
from inference.execution.sampler import NO_TOKEN, NUMERICAL_ERROR, Sampled, Sampler
from inference.flight import Flight, Word
from inference.live import LiveRequest
from inference.roster import Roster
from inference.scheduling.account import Stage
from inference.scheduling.plan import Schedule
from inference.scheduling.request import FinishReason, Request, RequestState
from inference.scheduling.scheduler import Scheduler
from inference.step import Outcome, now_ms

_CODES = {NUMERICAL_ERROR: "numerical_error", NO_TOKEN: "bad_params", FAILED: "internal"}


class Passes:
    """`start` each iteration, then `finish` it. runner: the model and its cache."""

    def __init__(self, config: EngineConfig, model: Model, scheduler: Scheduler, roster: Roster) -> None:
        self._scheduler, self._roster, self._pool = scheduler, roster, scheduler.kv.pool
        cache = model.new_cache(self._pool.num_blocks, config.block_size)
        self.runner = ModelRunner(model, cache, config.max_num_seqs if config.cuda_graphs else 0)
        self._builder = IsolatedBuilder(BatchBuilder(config.max_num_seqs, config.block_size))
        self._sampler = IsolatedSampler(Sampler())

    def build(self, flight: Flight) -> Batch | None:
        """The batch of a planned iteration; None if no row is left: one that can't be built leaves the plan, and its
        request fails."""
        plan, phases = flight.plan, flight.phases
        batch, broken = self._builder.build(plan.rows)
        if broken:
            plan.rows = [row for row in plan.rows if row not in broken]
            for row in broken:
                self.fail(self._roster.live[row.request.request_id], "internal", flight.outcome)
        for request in plan.joined:
            if (live := self._roster.live.get(request.request_id)) is not None:  # else it could not be built
                live.times.started_at = live.times.started_at or phases.started_at
        phases.end("schedule")
        return batch

    def start(self, flight: Flight, batch: Batch) -> None:
        """Launch the forward pass. Where a device computes on its own, it goes on after this."""
        flight.logits = self.runner.execute(batch)
        flight.phases.end("forward")
        flight.ask(draws_of(flight.plan.rows, self._roster.live))

    def finish(self, flight: Flight, logits: torch.Tensor) -> None:
        """Draw tokens and take them; where one is what was drafted, the next one, too."""
        phases = flight.phases
        phases.resume()
        flight.drop_departed()
        tokens = self._sampler.sample(logits_of(flight.draws, logits), flight.asked)
        phases.end("sample")
        phases.forward_took(self.runner.forward_ms())
        self._scheduler.commit(flight.plan)
        now, wall = now_ms(), time.time()
        while draws := [
            draw for draw, token in zip(flight.draws, tokens, strict=True) if self._take(draw, token, flight, now, wall)
        ]:
            flight.ask(draws)
            phases.end("commit")
            tokens = self._sampler.sample(logits_of(draws, logits), flight.asked)
            phases.end("sample")

    def fail(self, live: LiveRequest, code: str, outcome: Outcome) -> None:
        """End a request with this error code; the others go on."""
        if code == "numerical_error":
            self._purge(live.request.block_table)
        code = "bad_params" if live.too_complex else code
        self._roster.cut(live, FinishReason.ERROR, outcome, code, live.too_complex)

    def _take(self, draw: Draw, token: Sampled, flight: Flight, now: float, wall: float) -> bool:
        """Take a request's next token. Whether the one after it can be drawn, too: it is what was drafted."""
        row, request = draw.row, draw.row.request
        if token.token_id == NUMERICAL_ERROR and row.drafts:
            self._compute_again(request, flight.plan)
        else:
            self._push(draw.live, token, flight, now, wall)
            if request.state is RequestState.RUNNING and draw.foretold(token.token_id):
                self._scheduler.accept(request)
                draw.go_on()
                return True
        if row.drafts:
            self._scheduler.settle(row, draw.accepted)
            flight.outcome.accepted[request.request_id] = draw.accepted
        return False

    def _compute_again(self, request: Request, plan: Schedule) -> None:
        """NaN may come from a draft, since zero times NaN is NaN. Whether it does, is seen without drafts."""
        self._purge(request.block_table)
        self._scheduler.preempt(request)
        plan.preempted.append(request)
        self._roster.accounts.lost(self._roster.live[request.request_id].account, now_ms())
        if request.lookup is not None:
            request.lookup.stop()

    def _push(self, live: LiveRequest, token: Sampled, flight: Flight, now: float, wall: float) -> None:
        """The next token of a request, or word that there is none."""
        if token.token_id < 0:
            self.fail(live, _CODES[token.token_id], flight.outcome)
            return
        if not live.take(token):
            self.fail(live, "internal", flight.outcome)
            return
        if live.account.stage is not Stage.DECODE:
            self._roster.accounts.token(live.account, now)
            live.times.first_token_at = live.times.first_token_at or wall
        is_last = live.answer.reason is not None
        flight.untold.append(self._roster.leave(live) if is_last else Word(live))
        if not self.runner.is_async:
            self._roster.tell(flight)
            self._roster.end_failed(flight)

    def _purge(self, blocks: Sequence[int]) -> None:
        """No one shall find what is in these blocks again. Others may be reading the first of them, and do well."""
        self._pool.forget(blocks)
        self.runner.zero([block for block in blocks if self._pool.references(block) == 1])
