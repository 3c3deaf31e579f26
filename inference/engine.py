"""The engine: a step is schedule -> run -> sample -> commit (after nano-vllm's three calls).

Knows: requests, the scheduler, the runner, answers. Must not know: the web, the broker, threads.
All calls come from one thread: the worker hands orders over between steps, so that a cancel takes effect between two
iterations. A request that raises fails alone; a broken pool or device raises out of `step`, and then the process must
end: nothing is continued in doubt.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from inference.answer import Answer
from inference.checks import number
from inference.config import EngineConfig, ParameterError, SamplingParams
from inference.controls import Controls
from inference.draws import Draw, draws_of, logits_of
from inference.execution.batch import Batch
from inference.execution.batch_builder import BatchBuilder
from inference.execution.cache import num_kv_blocks
from inference.execution.isolated_builder import IsolatedBuilder
from inference.execution.isolated_sampler import FAILED, IsolatedSampler
from inference.execution.models.protocol import Model
from inference.execution.runner import ModelRunner
from inference.execution.sampler import NO_TOKEN, NUMERICAL_ERROR, Sampled, Sampler
from inference.flight import Flight, Word, last_word
from inference.live import LiveRequest
from inference.roster import Roster
from inference.scheduling.account import Stage
from inference.scheduling.blocks import BlockPool, PoolError
from inference.scheduling.factory import new_scheduler
from inference.scheduling.ledger import KVUse, Ledger
from inference.scheduling.line import Place
from inference.scheduling.outputs import Output, RequestFinish, StepOutput
from inference.scheduling.plan import Schedule
from inference.scheduling.receipt import Past
from inference.scheduling.request import FinishReason, Request, RequestRefused, RequestState
from inference.scheduling.token_ids import checked_ids, checked_params
from inference.step import Outcome, Phases, Planned, now_ms
from inference.text.grammar import Grammar, GrammarState, compile_grammar

_CODES = {NUMERICAL_ERROR: "numerical_error", NO_TOKEN: "bad_params", FAILED: "internal"}


class Engine:
    """Continuous batching over a paged KV cache. `Engine(config)` loads a model; `from_parts` takes one.

    pool, ledger, tokenizer, model_name: to be read.  epoch: to be set by the process that runs the engine.
    controls: pause, step, other limits, while it runs.
    before_forward: called when a forward pass is about to begin, during which other threads have the interpreter.
    """

    def __init__(self, config: EngineConfig) -> None:
        """Raises ModelError, TokenizerError or ParameterError with one sentence."""
        from inference.execution.models.loader import load_model
        from inference.text.tokenizer import load_tokenizer

        loaded = load_model(config)
        self._set_up(config, loaded.model, load_tokenizer(loaded.tokenizer_folder), loaded.name)

    @classmethod
    def from_parts(cls, config: EngineConfig, model: Model, tokenizer: Any, name: str = "custom") -> Engine:
        """An engine over a model and a tokenizer that exist already."""
        engine = cls.__new__(cls)
        engine._set_up(config, model, tokenizer, name)
        return engine

    def _set_up(self, config: EngineConfig, model: Model, tokenizer: Any, name: str) -> None:
        self.config, self.tokenizer, self.model_name = config, tokenizer, name
        self.epoch = 0
        self.before_forward: Callable[[], None] = lambda: None
        self.max_model_len = min(config.max_model_len or model.max_model_len, model.max_model_len)
        self.pool = BlockPool(num_kv_blocks(config, model), config.block_size)
        self.scheduler = new_scheduler(config, self.pool, self.max_model_len)
        self.controls = Controls(config, self.scheduler)
        self.ledger = Ledger()
        self._vocab_size = model.vocab_size
        # As vLLM: ids that the model's own files name, and the one that ends a turn of the chat template.
        self._eos_token_ids = frozenset(model.eos_token_ids) | frozenset(tokenizer.eos_token_ids)
        cache = model.new_cache(self.pool.num_blocks, config.block_size)
        self._runner = ModelRunner(model, cache, config.max_num_seqs if config.cuda_graphs else 0)
        self._builder = IsolatedBuilder(BatchBuilder(config.max_num_seqs, config.block_size))
        self._sampler = IsolatedSampler(Sampler())
        self._roster = Roster(self.scheduler)
        self._live, self._accounts = self._roster.live, self._roster.accounts
        self._pending = Outcome()  # what ended between two steps
        self._under_way: Flight | None = None  # the iteration that a device computes
        self._n = 0
        self._told_of = -1  # the queue's version when a record last told of it

    @property
    def has_work(self) -> bool:
        """Whether a step would do or report something, now or in a while."""
        return self.scheduler.has_work or bool(self._pending.finishes) or self._under_way is not None

    def seconds_to_next_step(self) -> float:
        """With work: how long a step would find nothing to do if nothing else came: a batch is still filling, or the
        engine is paused (then perhaps for ever) or runs slowly."""
        if self._pending.finishes or self._under_way is not None:
            return 0.0
        now = now_ms()
        return max(0.0, self.scheduler.wakes_at(now) - now) / 1000

    def set_policy(self, name: str) -> None:
        """Go on under another batching policy: see `controls`. Raises ParameterError for a name that is none."""
        self.controls.set_policy(name)

    def add_request(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        user: str = "",
        output_ids: Sequence[int] = (),
        grammar: Grammar | None = None,
        age: float = 0.0,
        past: Past | None = None,
    ) -> str:
        """Queue a request; its id.

        output_ids: tokens it has already; they are prefilled, and the next one follows.  grammar: of the params'
        response_format, where it was compiled before.  age: seconds for which it has waited elsewhere.
        past: where these went, as far as another engine had it.
        Raises RequestRefused for what can never run, ParameterError for n > 1 (see `SamplingParams.siblings`).
        """
        params = params or SamplingParams()
        age = number(0.0, 1e9)("age", age)
        if params.n != 1:
            raise ParameterError(f"n is {params.n}; add each of params.siblings(), or use generate()")
        request_id = request_id or secrets.token_hex(16)
        if request_id in self._live:
            raise RequestRefused("conflict", f"request {request_id} waits or runs already")
        given = self.tokenizer.encode_text(prompt) if isinstance(prompt, str) else prompt
        prompt_ids = checked_ids("the prompt", given, self._vocab_size)
        checked_params(params, self._vocab_size)
        answer = Answer(request_id, self.tokenizer, params, self._eos_token_ids, self._format(params, grammar))
        answer.replay(checked_ids("the answer so far", output_ids, self._vocab_size))
        seed = secrets.randbits(63) if params.seed is None else params.seed
        now = now_ms()
        request = Request(
            request_id, prompt_ids, params, seed, user, output_ids=answer.ids, arrived_ms=now - 1000 * age
        )
        live = LiveRequest.of(request, answer, self._accounts.open(request, now, 1000 * age, past))
        self.scheduler.add(request, now)
        self._live[request_id] = live
        self._accounts.arrive(live.account)
        if answer.reason is not None:  # it had come to its end, and only word of that was lost
            self._roster.end(live, self._between)
        return request_id

    def _format(self, params: SamplingParams, grammar: Grammar | None) -> GrammarState | None:
        if params.response_format is None:
            return None
        grammar = grammar or compile_grammar(params.response_format, self.tokenizer)
        return grammar.start(self._eos_token_ids.union(params.stop_token_ids))

    def cancel(self, request_id: str) -> bool:
        """End a request before the next iteration; the next step reports it. False where there is no such request."""
        live = self._live.get(request_id)
        if live is None:
            return False
        self._roster.cut(live, FinishReason.CANCELLED, self._between)
        return True

    @property
    def _between(self) -> Outcome:
        """Where that is told which ends between two steps."""
        return self._pending if self._under_way is None else self._under_way.outcome

    def line(self) -> list[Place]:
        """Where each waiting request stands."""
        records = self.ledger.records
        return self._roster.line.places(records[-1].waiting if records else ())

    def step(self) -> StepOutput:
        """One iteration: every running request computes some of its prompt, or its next token.

        Where a device computes on its own, the outputs are those of the iteration that it has just ended, and they are
        made while it is at the next one (see flight.py); what each request computes is the same.
        """
        if self._runner.is_async:
            flight, self._under_way = self._under_way, None
            if flight is not None:
                self._land(flight)
            self._under_way = self._launch()
        elif (flight := self._launch()) is not None:
            self._land(flight)
        return StepOutput([], [], None) if flight is None else self._report(flight)

    def _launch(self) -> Flight | None:
        """Plan the next iteration and start its forward pass; None where there is nothing to do or to tell."""
        outcome, self._pending = self._pending, Outcome()
        phases = Phases()
        for request, sentence in self.scheduler.deadlines.expired(phases.t0):
            self._roster.cut(self._live[request.request_id], FinishReason.EXPIRED, outcome, message=sentence)
        plan = self.scheduler.schedule(phases.t0)
        load = plan.load()
        self._accounts.planned(plan, load, self._n + 1, phases.t0)
        for request in plan.broken:
            self._fail(self._live[request.request_id], "internal", outcome)
        if not plan.rows and not plan.preempted and not outcome.finishes and not self._queue_changed():
            return None
        self._n += 1
        flight = Flight(plan, Planned.of(self.scheduler, plan), phases, outcome, self._n, load)
        if plan.rows:
            self._compute(flight)
        return flight

    def _land(self, flight: Flight) -> None:
        """All that the next iteration depends on: the tokens, who goes on, which blocks and seats are free."""
        self._roster.landed = flight
        if flight.logits is not None:
            self._draw(flight, flight.logits)
        flight.logits = None
        flight.phases.end("commit")
        if flight.plan.rows:
            self.scheduler.pace.costs.observe(flight.load, flight.phases.total)
        ended = flight.phases.ended_ms
        self._accounts.landed(ended, self.scheduler.gate.opens_at(ended) > ended)
        flight.kv = KVUse(self.pool.free_count, self.pool.cached_count, self.pool.held_count, self.pool.num_blocks)
        flight.blocks = self.scheduler.kv.changes()

    def _report(self, flight: Flight) -> StepOutput:
        """Tell the rest."""
        self._roster.tell(flight)
        self._roster.end_failed(flight)
        record = flight.record(self.epoch)
        self.ledger.append(record)
        if not self.has_work:
            self._check_idle()
        return StepOutput(flight.outcome.deltas, flight.outcome.finishes, record)

    def _queue_changed(self) -> bool:
        """Whether there is something new to tell of those who wait, though nothing runs. Between two iterations of a
        slow engine there is not: the next one will tell."""
        if self.scheduler.gate.is_resting:
            return False
        before, self._told_of = self._told_of, self.scheduler.queue.version
        return before != self._told_of and bool(self.scheduler.waiting)

    def generate(
        self,
        prompts: Sequence[str] | Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Output]:
        """Answer all prompts, batched; outputs in their order. The engine must be idle.

        Raises RequestRefused, and then none has run, where one can never run.
        """
        if self.has_work:
            raise RuntimeError("generate() needs the engine for itself, and there are requests under way")
        if self.controls.paused:
            raise RuntimeError("generate() needs an engine that is not paused")
        each = list(params) if isinstance(params, Sequence) else [params or SamplingParams()] * len(prompts)
        if len(each) != len(prompts):
            raise ParameterError(f"there are {len(prompts)} prompts and {len(each)} parameters; give one, or one each")
        try:
            names = [
                [self.add_request(prompt, sibling) for sibling in one.siblings()]
                for prompt, one in zip(prompts, each, strict=True)
            ]
            live = dict(self._live)
            outputs = {finish.request_id: live[finish.request_id].output(finish) for finish in self._until_idle()}
        finally:
            self._discard_all()
        families = [[outputs[name] for name in family] for family in names]
        return [replace(first, others=others) if others else first for first, *others in families]

    def _until_idle(self) -> Iterator[RequestFinish]:
        while self.has_work:
            time.sleep(self.seconds_to_next_step())
            yield from self.step().finishes

    def _discard_all(self) -> None:
        """Nothing is left waiting or running, and nothing is said of it."""
        self._roster.clear()
        self._pending, self._under_way = Outcome(), None

    def _compute(self, flight: Flight) -> None:
        """Start the forward pass of a planned iteration."""
        plan, phases = flight.plan, flight.phases
        batch = self._build(plan, flight.outcome)
        for request in plan.joined:
            if (live := self._live.get(request.request_id)) is not None:  # else it could not be built
                live.times.started_at = live.times.started_at or phases.started_at
        phases.end("schedule")
        if batch is None:
            return
        self.before_forward()
        flight.logits = self._runner.execute(batch)
        phases.end("forward")
        flight.ask(draws_of(plan.rows, self._live))

    def _draw(self, flight: Flight, logits: torch.Tensor) -> None:
        """Draw tokens and take them; where one is what was drafted, the next one, too."""
        phases = flight.phases
        phases.resume()
        flight.drop_departed()
        tokens = self._sampler.sample(logits_of(flight.draws, logits), flight.asked)
        phases.end("sample")
        phases.forward_took(self._runner.forward_ms())
        self.scheduler.commit(flight.plan)
        now, wall = now_ms(), time.time()
        while draws := [
            draw for draw, token in zip(flight.draws, tokens, strict=True) if self._take(draw, token, flight, now, wall)
        ]:
            flight.ask(draws)
            phases.end("commit")
            tokens = self._sampler.sample(logits_of(draws, logits), flight.asked)
            phases.end("sample")

    def _build(self, plan: Schedule, outcome: Outcome) -> Batch | None:
        """The batch of the plan; None if no row is left: one that can't be built leaves it, and its request fails."""
        batch, broken = self._builder.build(plan.rows)
        if broken:
            plan.rows = [row for row in plan.rows if row not in broken]
            for row in broken:
                self._fail(self._live[row.request.request_id], "internal", outcome)
        return batch

    def _take(self, draw: Draw, token: Sampled, flight: Flight, now: float, wall: float) -> bool:
        """Take a request's next token. Whether the one after it can be drawn, too: it is what was drafted."""
        row, request = draw.row, draw.row.request
        if token.token_id == NUMERICAL_ERROR and row.drafts:
            self._compute_again(request, flight.plan)
        else:
            self._push(draw.live, token, flight, now, wall)
            if request.state is RequestState.RUNNING and draw.foretold(token.token_id):
                self.scheduler.accept(request)
                draw.go_on()
                return True
        if row.drafts:
            self.scheduler.settle(row, draw.accepted)
            flight.outcome.accepted[request.request_id] = draw.accepted
        return False

    def _compute_again(self, request: Request, plan: Schedule) -> None:
        """NaN may come from a draft, since zero times NaN is NaN. Whether it does, is seen without drafts."""
        self._purge(request.block_table)
        self.scheduler.preempt(request)
        plan.preempted.append(request)
        self._accounts.lost(self._live[request.request_id].account, now_ms())
        if request.lookup is not None:
            request.lookup.stop()

    def _push(self, live: LiveRequest, token: Sampled, flight: Flight, now: float, wall: float) -> None:
        """The next token of a request, or word that there is none."""
        if token.token_id < 0:
            self._fail(live, _CODES[token.token_id], flight.outcome)
            return
        if not live.take(token):
            self._fail(live, "internal", flight.outcome)
            return
        if live.account.stage is not Stage.DECODE:
            self._accounts.token(live.account, now)
            live.times.first_token_at = live.times.first_token_at or wall
        is_last = live.answer.reason is not None
        flight.untold.append(last_word(live, self._roster.leave(live)) if is_last else Word(live))
        if not self._runner.is_async:
            self._roster.tell(flight)
            self._roster.end_failed(flight)

    def _fail(self, live: LiveRequest, code: str, outcome: Outcome) -> None:
        if code == "numerical_error":
            self._purge(live.request.block_table)
        self._roster.cut(live, FinishReason.ERROR, outcome, code)

    def _purge(self, blocks: Sequence[int]) -> None:
        """No one shall find what is in these blocks again. Others may be reading the first of them, and do well."""
        self.pool.forget(blocks)
        self._runner.zero([block for block in blocks if self.pool.references(block) == 1])

    def _check_idle(self) -> None:
        """Nothing runs or waits, so no block may be held, and the pool's equation must hold."""
        self.pool.check()
        if self.pool.held_count:
            raise PoolError(f"{self.pool.held_count} blocks are held, and no request is there")
