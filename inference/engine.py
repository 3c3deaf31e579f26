"""The engine: a step is schedule -> run -> sample -> commit (after nano-vllm's three calls).

Knows: requests, the scheduler, the runner, answers. Must not know: the web, the broker, threads.
All calls come from one thread: the worker hands orders over between steps, so that a cancel takes effect between two
iterations. A request that raises fails alone; a broken pool or device raises out of `step`, and the process must end.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from inference.answer import Answer
from inference.config import EngineConfig, ParameterError, SamplingParams
from inference.execution.batch_builder import BatchBuilder
from inference.execution.models.protocol import Model
from inference.execution.runner import ModelRunner
from inference.execution.sampler import NUMERICAL_ERROR, Sampler, SampleRow
from inference.scheduling.blocks import BlockPool
from inference.scheduling.ledger import Budget, Finished, IterationRecord, KVUse, Ledger, Row
from inference.scheduling.outputs import Output, RequestFinish, StepOutput, TokenDelta
from inference.scheduling.policies import POLICIES
from inference.scheduling.request import FinishReason, Request, RequestRefused
from inference.scheduling.scheduler import Schedule, ScheduledRow, Scheduler

log = logging.getLogger("batchscope.engine")

FAILED = NUMERICAL_ERROR - 1  # in place of a token id: sampling raised
_MESSAGES = {
    "numerical_error": "the model computed something that is not a number for this request",
    "internal": "this request failed in the engine; the others go on",
}


@dataclass(slots=True)
class _Entry:
    """What the engine knows of a request besides the scheduler's part. Times: monotonic ms, then Unix seconds."""

    request: Request
    answer: Answer
    arrived: float
    first_scheduled: float = 0.0
    first_token: float = 0.0
    started_at: float = 0.0
    first_token_at: float = 0.0


@dataclass(slots=True)
class _Outcome:
    """Filled while a step goes on."""

    deltas: list[TokenDelta] = field(default_factory=list)
    finishes: list[RequestFinish] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)


class Engine:
    """Continuous batching over a paged KV cache. `Engine(config)` loads a model; `from_parts` takes one."""

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
        self.pool = BlockPool(_kv_blocks(config, model, self.max_model_len), config.block_size)
        self.scheduler = Scheduler(
            self.pool,
            config.max_num_seqs,
            config.max_num_batched_tokens,
            self.max_model_len,
            POLICIES[config.policy](),
        )
        self.ledger = Ledger()
        self._model = model
        self._runner = ModelRunner(model, model.new_cache(self.pool.num_blocks, config.block_size))
        self._builder = BatchBuilder(config.max_num_seqs, config.block_size)
        self._sampler = Sampler()
        self._entries: dict[str, _Entry] = {}
        self._pending = _Outcome()  # what ended between two steps
        self._n = 0

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or bool(self._pending.finishes)

    def add_request(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        user: str = "",
        output_ids: Sequence[int] = (),
    ) -> str:
        """Queue a request; its id. `output_ids`: tokens it has already; they are prefilled, and the next one follows.

        Raises RequestRefused for what can never run and ParameterError for an id that is in use.
        """
        params = params or SamplingParams()
        request_id = request_id or secrets.token_hex(16)
        if request_id in self._entries:
            raise ParameterError(f"request {request_id} is running already")
        prompt_ids = self.tokenizer.encode_text(prompt) if isinstance(prompt, str) else list(prompt)
        _check_ids("the prompt", prompt_ids, self._model.vocab_size)
        _check_ids("stop_token_ids", params.stop_token_ids, self._model.vocab_size)
        _check_ids("the answer so far", output_ids, self._model.vocab_size)
        seed = secrets.randbits(63) if params.seed is None else params.seed
        answer = Answer(request_id, self.tokenizer, params, self._model.eos_token_ids)
        # The answer's ids are the request's: one list, one owner.
        request = Request(request_id, prompt_ids, params, seed, user, output_ids=answer.ids)
        for token_id in output_ids:
            answer.push(token_id)
        self.scheduler.add(request)
        entry = self._entries[request_id] = _Entry(request, answer, arrived=_now())
        if answer.reason is not None:  # it had come to its end, and only word of that was lost
            self._end(entry, self._pending)
        return request_id

    def cancel(self, request_id: str) -> bool:
        """End a request before the next iteration. False where there is no such request."""
        entry = self._entries.get(request_id)
        if entry is None:
            return False
        self._cut(entry, FinishReason.CANCELLED, self._pending)
        return True

    def step(self) -> StepOutput:
        """One iteration: every running request computes some of its prompt, or its next token."""
        outcome, self._pending = self._pending, _Outcome()
        started_at, began = time.time(), _now()
        plan = self.scheduler.schedule()
        if not plan.rows and not outcome.finishes:
            return StepOutput([], [], None)
        marks = [_now()]
        self._note_start(plan, began, started_at)
        tokens = self._compute(plan.rows, marks) if plan.rows else []
        self._n += 1
        rows = tuple(_ledger_row(row) for row in plan.rows)
        self._commit(plan.rows, tokens, outcome)
        marks += [_now()] * (4 - len(marks))
        record = self._record(plan, rows, outcome, started_at, began, marks)
        self.ledger.append(record)
        return StepOutput(outcome.deltas, outcome.finishes, record)

    def generate(
        self,
        prompts: Sequence[str] | Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Output]:
        """Answer all prompts, batched; outputs in their order. Raises RequestRefused where one can never run."""
        each = list(params) if isinstance(params, Sequence) else [params or SamplingParams()] * len(prompts)
        if len(each) != len(prompts):
            raise ParameterError(f"there are {len(prompts)} prompts and {len(each)} parameters; give one, or one each")
        ids: list[str] = []
        try:
            for prompt, one in zip(prompts, each, strict=True):
                ids.append(self.add_request(prompt, one))
        except ValueError:
            for request_id in ids:
                self.cancel(request_id)
            self.step()
            raise
        answers = {request_id: self._entries[request_id].answer for request_id in ids if request_id in self._entries}
        ends: dict[str, RequestFinish] = {}
        while len(ends) < len(ids):
            ends.update((finish.request_id, finish) for finish in self.step().finishes if finish.request_id in answers)
        return [_output(answers[request_id], ends[request_id]) for request_id in ids]

    def _note_start(self, plan: Schedule, now: float, wall: float) -> None:
        for row in plan.rows:
            entry = self._entries[row.request.request_id]
            if not entry.started_at:
                entry.first_scheduled, entry.started_at = now, wall

    def _compute(self, rows: Sequence[ScheduledRow], marks: list[float]) -> list[int]:
        """Token ids of the rows that sample, in order."""
        batch = self._builder.build(rows)
        marks[0] = _now()
        logits = self._runner.execute(batch)
        marks.append(_now())
        wanted = [self._sample_row(row.request) for row in rows if row.samples]
        tokens = self._sample(logits, wanted) if wanted else []
        marks.append(_now())
        return tokens

    def _sample_row(self, request: Request) -> SampleRow:
        end_ids = self._entries[request.request_id].answer.end_ids
        return SampleRow(request.params, request.seed, len(request.output_ids), end_ids)

    def _sample(self, logits: Any, wanted: list[SampleRow]) -> list[int]:
        try:
            return self._sampler.sample(logits, wanted)
        except Exception:
            log.exception("sampling_failed: trying row by row")
        return [self._sample_alone(logits[i : i + 1], row) for i, row in enumerate(wanted)]

    def _sample_alone(self, logits: Any, row: SampleRow) -> int:
        try:
            return self._sampler.sample(logits, [row])[0]
        except Exception:
            log.exception("sampling_failed: one request fails")
            return FAILED

    def _commit(self, rows: Sequence[ScheduledRow], tokens: Sequence[int], outcome: _Outcome) -> None:
        """What was computed counts; new tokens become text; requests that ended leave."""
        token = iter(tokens)
        for row in rows:
            row.request.num_computed_tokens += row.num_tokens
            if row.samples:
                self._take_token(self._entries[row.request.request_id], next(token), outcome)

    def _take_token(self, entry: _Entry, token_id: int, outcome: _Outcome) -> None:
        if token_id < 0:
            self._fail(entry, "numerical_error" if token_id == NUMERICAL_ERROR else "internal", outcome)
            return
        if not entry.first_token:
            entry.first_token, entry.first_token_at = _now(), time.time()
        try:
            delta = entry.answer.push(token_id)
        except Exception:
            log.exception("detokenising_failed: one request fails")
            self._fail(entry, "internal", outcome)
            return
        if delta is not None:
            outcome.deltas.append(delta)
        if entry.answer.reason is not None:
            self._end(entry, outcome)

    def _fail(self, entry: _Entry, code: str, outcome: _Outcome) -> None:
        self._cut(entry, FinishReason.ERROR, outcome, code)

    def _cut(self, entry: _Entry, reason: FinishReason, outcome: _Outcome, code: str = "") -> None:
        if (delta := entry.answer.cut(reason)) is not None:
            outcome.deltas.append(delta)
        self._end(entry, outcome, code)

    def _end(self, entry: _Entry, outcome: _Outcome, code: str = "") -> None:
        request, answer = entry.request, entry.answer
        seat = request.seat if request.seat >= 0 else None
        request.finish_reason = answer.reason
        self.scheduler.remove(request)
        del self._entries[request.request_id]
        outcome.finished.append(Finished(request.request_id, str(answer.reason), seat))
        outcome.finishes.append(
            RequestFinish(
                request.request_id,
                answer.seq + 1,
                answer.reason or FinishReason.ERROR,
                answer.unsent_ids,
                len(request.prompt_ids),
                len(answer.ids),
                error_code=code,
                error_message=_MESSAGES.get(code, ""),
                receipt=_receipt(entry, _now()),
                started_at=entry.started_at,
                first_token_at=entry.first_token_at,
                finished_at=time.time(),
            )
        )

    def _record(
        self,
        plan: Schedule,
        rows: tuple[Row, ...],
        outcome: _Outcome,
        started_at: float,
        began: float,
        marks: list[float],
    ) -> IterationRecord:
        scheduled, ran, sampled, committed = marks
        pool = self.pool
        return IterationRecord(
            n=self._n,
            epoch=self.epoch,
            started_at=started_at,
            t0=began,
            schedule=scheduled - began,
            forward=ran - scheduled,
            sample=sampled - ran,
            commit=committed - sampled,
            policy=self.config.policy,
            rows=rows,
            waiting=self.scheduler.waiting_reasons(plan),
            waiting_total=len(self.scheduler.waiting),
            preempted=tuple(request.request_id for request in plan.preempted),
            finished=tuple(outcome.finished),
            kv=KVUse(pool.free_count, pool.cached_count, pool.held_count, pool.num_blocks),
            budget=Budget(plan.num_tokens, self.config.max_num_batched_tokens),
            seats=self.config.max_num_seqs,
        )


def _now() -> float:
    """Milliseconds of the one clock by which everything is timed."""
    return time.perf_counter() * 1000


def _check_ids(what: str, ids: Sequence[int], width: int) -> None:
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise RequestRefused("bad_params", f"{what} must be whole numbers, not {type(token_id).__name__}")
        if not 0 <= token_id < width:
            raise RequestRefused("bad_params", f"{what} has token id {token_id}; this model's are 0 to {width - 1}")


def _kv_blocks(config: EngineConfig, model: Model, max_model_len: int) -> int:
    """Blocks of the pool: as set, else what the memory holds, but no more than all seats can ever use."""
    if config.kv_blocks is not None:
        return config.kv_blocks
    each = model.kv_bytes_per_block(config.block_size)
    count = min(config.kv_memory // each, config.max_num_seqs * -(-max_model_len // config.block_size))
    if count < 1:
        raise ParameterError(f"kv_memory is {config.kv_memory} bytes, and one KV block of this model takes {each}")
    return count


def _ledger_row(row: ScheduledRow) -> Row:
    """Before the commit, since a request that ends there loses its seat and its blocks."""
    request = row.request
    kind = "decode" if row.num_tokens == 1 and row.samples and request.output_ids else "prefill"
    return Row(
        request.request_id, request.seat, kind, row.num_tokens, row.start + row.num_tokens, len(request.block_table)
    )


def _receipt(entry: _Entry, now: float) -> dict[str, float]:
    """Queue, prefill and decode in ms; they add up to the total."""
    started = entry.first_scheduled or now
    first_token = entry.first_token or now
    return {
        "queue": started - entry.arrived,
        "prefill": first_token - started,
        "decode": now - first_token,
        "total": now - entry.arrived,
    }


def _output(answer: Answer, finish: RequestFinish) -> Output:
    return Output(
        answer.request_id,
        list(answer.ids),
        answer.text,
        finish.finish_reason,
        finish.prompt_tokens,
        finish.cached_tokens,
        finish.error_code,
        finish.error_message,
        finish.receipt,
    )
