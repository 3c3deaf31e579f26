"""The engine: a step is schedule -> run -> sample -> commit (after nano-vllm's three calls).

Knows: requests, the scheduler, the runner, answers. Must not know: the web, the broker, threads.
All calls come from one thread: the worker hands orders over between steps, so that a cancel takes effect between two
iterations. A request that raises fails alone; a broken pool or device raises out of `step`, and then the process must
end: nothing is continued in doubt.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

from inference.answer import Answer
from inference.checks import number
from inference.config import EngineConfig, ParameterError, SamplingParams
from inference.controls import Controls
from inference.execution.cache import num_kv_blocks
from inference.execution.models.protocol import Model
from inference.flight import Flight
from inference.generate import Prompts, generate
from inference.live import LiveRequest
from inference.passes import Passes
from inference.roster import Roster
from inference.scheduling.blocks import BlockPool, PoolError
from inference.scheduling.factory import new_scheduler
from inference.scheduling.ledger import KVUse, Ledger
from inference.scheduling.line import Place
from inference.scheduling.outputs import Output, StepOutput
from inference.scheduling.receipt import Past
from inference.scheduling.request import FinishReason, Request, RequestRefused
from inference.scheduling.token_ids import checked_ids, checked_params
from inference.step import Outcome, Phases, Planned, now_ms
from inference.text.grammar import Grammar, GrammarState, compile_grammar


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
        self._roster = Roster(self.scheduler)
        self._passes = Passes(config, model, self.scheduler, self._roster)
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
        if self._passes.runner.is_async:
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
            self._passes.fail(self._live[request.request_id], "internal", outcome)
        if not plan.rows and not plan.preempted and not outcome.finishes and not self._queue_changed():
            return None
        self._n += 1
        flight = Flight(plan, Planned.of(self.scheduler, plan), phases, outcome, self._n, load)
        if plan.rows and (batch := self._passes.build(flight)) is not None:
            self.before_forward()
            self._passes.start(flight, batch)
        return flight

    def _land(self, flight: Flight) -> None:
        """All that the next iteration depends on: the tokens, who goes on, which blocks and seats are free."""
        self._roster.landed = flight
        if flight.logits is not None:
            self._passes.finish(flight, flight.logits)
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
        self, prompts: Prompts, params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Output]:
        """Answer all prompts, batched; outputs in their order. The engine must be idle.

        Raises RequestRefused, and then none has run, where one can never run.
        """
        if self.has_work:
            raise RuntimeError("generate() needs the engine for itself, and there are requests under way")
        if self.controls.paused:
            raise RuntimeError("generate() needs an engine that is not paused")
        try:
            return generate(self, self._live, prompts, params)
        finally:  # nothing is left waiting or running, and nothing is said of it
            self._roster.clear()
            self._pending, self._under_way = Outcome(), None

    def _check_idle(self) -> None:
        """Nothing runs or waits, so no block may be held, and the pool's equation must hold."""
        self.pool.check()
        if self.pool.held_count:
            raise PoolError(f"{self.pool.held_count} blocks are held, and no request is there")
