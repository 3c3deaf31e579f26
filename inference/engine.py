"""The engine: a step is schedule -> run -> sample -> commit (after nano-vllm's three calls).

Knows: requests, the scheduler, the runner, answers. Must not know: the web, the broker, threads.
All calls come from one thread: the worker hands orders over between steps, so that a cancel takes effect between two
iterations. A request that raises fails alone; a broken pool or device raises out of `step`, and then the process must
end: nothing is continued in doubt.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from inference.answer import Answer
from inference.checks import number
from inference.config import EngineConfig, ParameterError, SamplingParams
from inference.execution.batch import Batch
from inference.execution.batch_builder import BatchBuilder
from inference.execution.cache import num_kv_blocks
from inference.execution.isolated_builder import IsolatedBuilder
from inference.execution.isolated_sampler import FAILED, IsolatedSampler
from inference.execution.models.protocol import Model
from inference.execution.runner import ModelRunner
from inference.execution.sampler import NO_TOKEN, NUMERICAL_ERROR, Sampled, Sampler
from inference.live import LiveRequest
from inference.scheduling.blocks import BlockPool, PoolError
from inference.scheduling.factory import new_policy, new_scheduler
from inference.scheduling.ledger import Budget, Finished, IterationRecord, KVUse, Ledger
from inference.scheduling.outputs import Output, RequestFinish, StepOutput
from inference.scheduling.plan import Schedule
from inference.scheduling.receipt import RequestTimes
from inference.scheduling.request import FinishReason, Request, RequestRefused
from inference.scheduling.token_ids import checked_ids, checked_params
from inference.step import Outcome, Phases, Planned, now_ms
from inference.text.grammar import Grammar, GrammarState, compile_grammar

_CODES = {NUMERICAL_ERROR: "numerical_error", NO_TOKEN: "bad_params", FAILED: "internal"}


class Engine:
    """Continuous batching over a paged KV cache. `Engine(config)` loads a model; `from_parts` takes one.

    pool, ledger, tokenizer, model_name: to be read.  epoch: to be set by the process that runs the engine.
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
        self.max_model_len = min(config.max_model_len or model.max_model_len, model.max_model_len)
        self.pool = BlockPool(num_kv_blocks(config, model), config.block_size)
        self.scheduler = new_scheduler(config, self.pool, self.max_model_len)
        self.ledger = Ledger()
        self._vocab_size = model.vocab_size
        # As vLLM: ids that the model's own files name, and the one that ends a turn of the chat template.
        self._eos_token_ids = frozenset(model.eos_token_ids) | frozenset(tokenizer.eos_token_ids)
        self._runner = ModelRunner(model, model.new_cache(self.pool.num_blocks, config.block_size))
        self._builder = IsolatedBuilder(BatchBuilder(config.max_num_seqs, config.block_size))
        self._sampler = IsolatedSampler(Sampler())
        self._live: dict[str, LiveRequest] = {}
        self._pending = Outcome()  # what ended between two steps
        self._n = 0
        self._told_of = -1  # the queue's version when a record last told of it

    @property
    def has_work(self) -> bool:
        """Whether a step would do or report something, now or in a while."""
        return self.scheduler.has_work or bool(self._pending.finishes)

    def seconds_to_next_step(self) -> float:
        """With work: how long a step would find nothing to do if nothing else came (a batch is still filling)."""
        now = now_ms()
        return 0.0 if self._pending.finishes else max(0.0, self.scheduler.wakes_at(now) - now) / 1000

    def set_policy(self, name: str) -> None:
        """Go on under another batching policy. What runs ends first; what waits, waits for that.

        Raises ParameterError for a name that is none.
        """
        self.scheduler.switch_policy(new_policy(self.config, name))

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
    ) -> str:
        """Queue a request; its id.

        output_ids: tokens it has already; they are prefilled, and the next one follows.  grammar: of the params'
        response_format, where it was compiled before.  age: seconds for which it has waited elsewhere.
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
        live = LiveRequest.of(request, answer, RequestTimes(request.arrived_ms))
        self.scheduler.add(request, now)
        self._live[request_id] = live
        if answer.reason is not None:  # it had come to its end, and only word of that was lost
            self._end(live, self._pending)
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
        self._cut(live, FinishReason.CANCELLED, self._pending)
        return True

    def step(self) -> StepOutput:
        """One iteration: every running request computes some of its prompt, or its next token."""
        outcome, self._pending = self._pending, Outcome()
        phases = Phases()
        for request, sentence in self.scheduler.deadlines.expired(phases.t0):
            self._cut(self._live[request.request_id], FinishReason.EXPIRED, outcome, message=sentence)
        plan = self.scheduler.schedule(phases.t0)
        for request in plan.broken:
            self._fail(self._live[request.request_id], "internal", outcome)
        if not plan.rows and not outcome.finishes and not self._queue_changed():
            return StepOutput([], [], None)
        planned = Planned.of(self.scheduler, plan)
        if plan.rows:
            self._run(plan, outcome, phases)
        phases.end("commit")
        self._n += 1
        record = self._record(plan, planned, outcome, phases)
        self.ledger.append(record)
        if not self.has_work:
            self._check_idle()
        return StepOutput(outcome.deltas, outcome.finishes, record)

    def _queue_changed(self) -> bool:
        """Whether there is something new to tell of those who wait, though nothing runs."""
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
        for live in self._live.values():
            self.scheduler.remove(live.request)
        self._live.clear()
        self._pending = Outcome()

    def _run(self, plan: Schedule, outcome: Outcome, phases: Phases) -> None:
        batch = self._build(plan, outcome)
        for row in plan.rows:
            self._live[row.request.request_id].times.start(phases.t0, phases.started_at)
        phases.end("schedule")
        if batch is None:
            return
        logits = self._runner.execute(batch)
        phases.end("forward")
        sampling = [self._live[row.request.request_id] for row in plan.rows if row.samples]
        tokens = self._sampler.sample(logits, [one.sample_row() for one in sampling])
        phases.end("sample")
        self.scheduler.commit(plan)
        now, wall = now_ms(), time.time()
        for one, token in zip(sampling, tokens, strict=True):
            self._take(one, token, outcome, now, wall)

    def _build(self, plan: Schedule, outcome: Outcome) -> Batch | None:
        """The batch of the plan; None if no row is left: one that can't be built leaves it, and its request fails."""
        batch, broken = self._builder.build(plan.rows)
        if broken:
            plan.rows = [row for row in plan.rows if row not in broken]
            for row in broken:
                self._fail(self._live[row.request.request_id], "internal", outcome)
        return batch

    def _take(self, live: LiveRequest, token: Sampled, outcome: Outcome, now: float, wall: float) -> None:
        """The next token of a request, or word that there is none."""
        if token.token_id < 0:
            self._fail(live, _CODES[token.token_id], outcome)
            return
        delta, is_text = live.push(token)
        if not is_text:
            self._fail(live, "internal", outcome)
            return
        live.times.token(now, wall)
        if delta is not None:
            outcome.deltas.append(delta)
        if live.answer.reason is not None:
            self._end(live, outcome)

    def _fail(self, live: LiveRequest, code: str, outcome: Outcome) -> None:
        if code == "numerical_error":
            self._purge(live.request.block_table)
        self._cut(live, FinishReason.ERROR, outcome, code)

    def _purge(self, blocks: Sequence[int]) -> None:
        """No one shall find what is in these blocks again. Others may be reading the first of them, and do well."""
        self.pool.forget(blocks)
        self._runner.zero([block for block in blocks if self.pool.references(block) == 1])

    def _cut(
        self, live: LiveRequest, reason: FinishReason, outcome: Outcome, code: str = "", message: str = ""
    ) -> None:
        if (delta := live.cut(reason)) is not None:
            outcome.deltas.append(delta)
        self._end(live, outcome, code, message)

    def _end(self, live: LiveRequest, outcome: Outcome, code: str = "", message: str = "") -> None:
        request = live.request
        seat = request.seat if request.seat >= 0 else None
        finish = live.finish(code, message, now_ms(), time.time())
        request.finish_reason = finish.finish_reason
        self.scheduler.remove(request)
        del self._live[request.request_id]
        outcome.finished.append(Finished(request.request_id, str(finish.finish_reason), seat))
        outcome.finishes.append(finish)

    def _record(self, plan: Schedule, planned: Planned, outcome: Outcome, phases: Phases) -> IterationRecord:
        pool = self.pool
        return IterationRecord(
            n=self._n,
            epoch=self.epoch,
            started_at=phases.started_at,
            t0=phases.t0,
            **phases.durations,
            policy=planned.policy,
            rows=planned.rows,
            waiting=planned.waiting,
            waiting_total=planned.waiting_total,
            preempted=tuple(request.request_id for request in plan.preempted),
            finished=tuple(outcome.finished),
            kv=KVUse(pool.free_count, pool.cached_count, pool.held_count, pool.num_blocks),
            budget=Budget(plan.num_tokens, self.config.max_num_batched_tokens),
            seats=self.config.max_num_seqs,
            idle=planned.idle,
            padding=plan.padding,
        )

    def _check_idle(self) -> None:
        """Nothing runs or waits, so no block may be held, and the pool's equation must hold."""
        self.pool.check()
        if self.pool.held_count:
            raise PoolError(f"{self.pool.held_count} blocks are held, and no request is there")
