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
from inference.scheduling.ledger import Budget, Finished, IterationRecord, KVUse, Row
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
    before_forward: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.tokenizer = FakeTokenizer()
        self.pool = SimpleNamespace(num_blocks=64, free_count=64, cached_count=0, held_count=0, check=int)
        self.scheduler = SimpleNamespace(policy=SimpleNamespace(name=self.config.policy))
        self._running: dict[str, _Running] = {}
        self._n = 0

    @property
    def has_work(self) -> bool:
        return bool(self._running)

    def seconds_to_next_step(self) -> float:
        return 0.0

    def add_request(self, prompt_ids: list[int], params: SamplingParams, *, request_id: str, user: str = "",
                    output_ids: Any = (), grammar: Any = None, age: float = 0.0) -> str:  # fmt: skip
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
            receipt={"total": 1.0},
            started_at=time.time(),
            first_token_at=time.time(),
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
