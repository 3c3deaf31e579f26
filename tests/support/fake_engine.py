"""An engine without a model for tests of what stands around it: answers are the prompt's words, one token each.

Token ids are positions in the prompt's word list, so an answer is a pure function of its prompt, like a real one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from types import SimpleNamespace
from typing import Any

from inference.config import EngineConfig, SamplingParams
from inference.limits import Limits, checked_values
from inference.scheduling.ledger import Budget, Finished, IterationRecord, KVUse, Row
from inference.scheduling.pace import Pace
from inference.scheduling.receipt import make_receipt
from inference.scheduling.request import RequestRefused
from inference.scheduling.token_logprobs import TokenLogprobs


class FakeTokenizer:
    """A "token" is a word with its space; ids are indices into a table that grows."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def encode_text(self, text: str) -> list[int]:
        ids = []
        for word in text.split():
            if word not in self.words:
                self.words.append(word)
            ids.append(self.words.index(word))
        return ids

    @property
    def pieces(self) -> list[str]:
        return self.words

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        return self.encode_text(messages[-1]["content"])


class FakeControls:
    """Carries out what it is told by remembering it. `paused` is heeded by the engine."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self.paused, self.slow_ms = False, 0.0
        self.done: list[tuple[str, dict[str, Any]]] = []
        self.most = Limits(8, 512, 64)

    @property
    def settings(self) -> dict[str, Any]:
        return {"policy": self._engine.scheduler.policy.name, "next_policy": None, **self.most.to_mapping()}

    def carry_out(self, action: str, values: dict[str, Any]) -> None:
        self.done.append((action, checked_values(action, values)))
        self.paused = action == "pause" or (self.paused and action != "resume")


@dataclass
class _Running:
    prompt_ids: list[int]
    params: SamplingParams
    done: int
    reason: str = ""  # set where it ends before its time


@dataclass
class FakeEngine:
    """Repeats each prompt, one word a step, every `step_seconds`; refuses prompts of more than 100 words.

    The logprob of the word with id i is -i. A request older than `total_timeout`, or an hour, expires at once.
    """

    config: EngineConfig = field(default_factory=EngineConfig)
    step_seconds: float = 0.0
    crash_on: str = ""  # a word that it can't bear
    epoch: int = 0
    model_name: str = "fake"
    max_model_len: int = 1000
    before_forward: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.tokenizer = FakeTokenizer()
        self.pool = SimpleNamespace(num_blocks=64, free_count=64, cached_count=0, held_count=0, check=int)
        self.controls = FakeControls(self)
        self._running: dict[str, _Running] = {}
        policy = SimpleNamespace(name=self.config.policy)
        self.scheduler = SimpleNamespace(policy=policy, running=self._running, pace=Pace())
        self._n = 0

    @property
    def has_work(self) -> bool:
        return bool(self._running)

    def seconds_to_next_step(self) -> float:
        return inf if self.controls.paused and not any(run.reason for run in self._running.values()) else 0.0

    def add_request(self, prompt_ids: list[int], params: SamplingParams, *, request_id: str, user: str = "",
                    output_ids: Any = (), grammar: Any = None, age: float = 0.0, past: Any = None) -> str:  # fmt: skip
        if len(prompt_ids) > 100:
            raise RequestRefused("prompt_too_long", f"the prompt has {len(prompt_ids)} words; at most 100 fit")
        if request_id in self._running:
            raise ValueError(f"{request_id} runs already")
        limit = self.config.total_timeout or 3600.0
        expired = "expired" if age > limit else ""
        self._running[request_id] = _Running(list(prompt_ids), params, len(output_ids), expired)
        return request_id

    def cancel(self, request_id: str) -> bool:
        if request_id not in self._running:
            return False
        self._running[request_id].reason = "cancelled"
        return True

    def step(self) -> SimpleNamespace:
        if self.seconds_to_next_step() == inf:
            return SimpleNamespace(deltas=[], finishes=[], record=None)
        self.before_forward()
        time.sleep(self.step_seconds)
        self._n += 1
        deltas, finishes = [], []
        for request_id, run in list(self._running.items()):
            last = min(len(run.prompt_ids), run.params.max_tokens)
            if not run.reason and run.done < last:
                token_id = run.prompt_ids[run.done]
                word = self.tokenizer.words[token_id]
                if word == self.crash_on:
                    raise RuntimeError("a word that this engine can't bear")
                run.done += 1
                logprobs = [TokenLogprobs(token_id, -float(token_id), [(0, 0.0), (token_id, -inf)])]
                deltas.append(
                    SimpleNamespace(
                        request_id=request_id,
                        seq=run.done,
                        text=word + " ",
                        token_ids=(token_id,),
                        started_at=0.0,
                        logprobs=None if run.params.logprobs is None else logprobs,
                    )
                )
            if run.reason or run.done >= last:
                finishes.append(self._finish(request_id, run))
                del self._running[request_id]
        return SimpleNamespace(deltas=deltas, finishes=finishes, record=self._record(finishes))

    def _finish(self, request_id: str, run: _Running) -> SimpleNamespace:
        return SimpleNamespace(
            request_id=request_id,
            seq=run.done + 1,
            finish_reason=run.reason or "stop",
            token_ids=(),
            logprobs=None if run.params.logprobs is None else [],
            prompt_tokens=len(run.prompt_ids),
            completion_tokens=run.done,
            cached_tokens=0,
            error_code="",
            error_message="it took too long" if run.reason == "expired" else "",
            receipt=make_receipt({"decode": 1.0}, {}),
            started_at=time.time(),
            first_token_at=time.time(),
            finished_at=time.time(),
        )

    def _record(self, finishes: list[SimpleNamespace]) -> IterationRecord:
        return IterationRecord(
            n=self._n,
            epoch=self.epoch,
            started_at=time.time(),
            t0=0.0,
            schedule=0.1,
            forward=0.1,
            sample=0.1,
            commit=0.1,
            policy="continuous",
            rows=tuple(Row(r, i, "decode", 1, 1, 1) for i, r in enumerate(self._running)),
            waiting=(),
            waiting_total=0,
            preempted=(),
            finished=tuple(Finished(f.request_id, f.finish_reason, 0) for f in finishes),
            kv=KVUse(64, 0, 0, 64),
            budget=Budget(1, 512),
        )
