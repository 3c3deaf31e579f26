"""Schedules under which an answer must not change: all of them, few of them that cover all, and runs under one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from itertools import combinations, product
from typing import Any

import numpy as np
from support.carrying import Job, run_jobs
from support.reference import Expected, largest_difference

from inference.config import SamplingParams
from inference.engine import Engine
from inference.scheduling.prompt_lookup import PromptLookup
from inference.scheduling.request import FinishReason
from inference.scheduling.token_logprobs import TokenLogprobs

TOP = 5  # most likely tokens that are compared with each chosen one
BUDGET = 4096  # tokens of an iteration: never what bounds a chunk
NEVER = 0
LARGEST_DIFFERENCE = 1e-4  # of a logprob to transformers', in nats


@dataclass(frozen=True)
class Way:
    """One way to compute answers.

    batch: seats.  block: positions a block.  chunk: of a prompt in one iteration.
    cache: of prefixes; "hot": the same prompts ran before; "evicted": they did, and the pool is too small for them.
    every: iterations between two forced preemptions.  cancels: other requests are cancelled half-way.
    drafts: of a request in an iteration at most; some are right and some are wrong.
    """

    batch: int
    block: int
    chunk: str
    cache: str
    every: int
    cancels: bool
    policy: str
    drafts: int

    @property
    def makes_sense(self) -> bool:
        return self.block > 1 or self.chunk not in ("block - 1", "block")  # these are none, and the same as "1"

    @property
    def ran_before(self) -> bool:
        return self.cache in ("hot", "evicted")

    def settings(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """Of an engine that computes these jobs this way."""
        needs = [-(-(len(job.prompt) + job.params.max_tokens) // self.block) for job in jobs]
        kv_blocks = max(max(needs) + 1, sum(needs) // 6) if self.cache == "evicted" else sum(needs)
        chunks = {"block - 1": self.block - 1, "block": self.block, "block + 1": self.block + 1, "whole": BUDGET}
        return {
            "max_num_seqs": self.batch,
            "max_num_batched_tokens": BUDGET,
            "prefill_chunk": chunks.get(self.chunk) or int(self.chunk),
            "prefix_caching": self.cache != "off",
            "block_size": self.block,
            "kv_blocks": kv_blocks,
            "policy": self.policy,
            "batch_delay": 0.005,
            "draft_tokens": self.drafts,
            "draft_rows": 1024,
        }


AXES: dict[str, tuple[Any, ...]] = {
    "batch": (1, 2, 7, 64),
    "block": (1, 4, 16),
    "chunk": ("1", "7", "block - 1", "block", "block + 1", "whole"),
    "cache": ("off", "cold", "hot", "evicted"),
    "every": (NEVER, 1, 2, 3, 7),
    "cancels": (False, True),
    "policy": ("continuous", "dynamic", "static"),
    "drafts": (0, 4),
}
ALL_WAYS = [way for values in product(*AXES.values()) if (way := Way(*values)).makes_sense]


def covering(ways: Sequence[Way], strength: int) -> list[Way]:
    """Few of these in which all values of any `strength` axes meet: always the next one that brings most that is new.

    1: each value is there once; 2: each pair of values of two axes.
    """
    numbers: dict[tuple[Any, ...], int] = {}
    meetings = [
        [numbers.setdefault((axes, *(values[axis] for axis in axes)), len(numbers)) for axes in groups]
        for values, groups in ((astuple(way), combinations(range(len(AXES)), strength)) for way in ways)
    ]
    table, missing, chosen = np.array(meetings), np.ones(len(numbers), bool), []
    while missing.any():
        best = int(missing[table].sum(axis=1).argmax())
        chosen.append(ways[best])
        missing[table[best]] = False
    return chosen


@dataclass(frozen=True)
class Question:
    """A prompt, how it is to be answered, and transformers' answer. text: of the answer, without end token and stop."""

    prompt: list[int]
    params: SamplingParams
    expected: Expected
    text: str


def run_this_way(make: Callable[..., Engine], way: Way, questions: Sequence[Question]) -> float:
    """Compute all answers and compare them; the largest difference between two logprobs."""
    asked = _with_twins(way, questions)
    jobs = [job for job, _ in asked]
    engine = make(**way.settings(jobs))
    worst = 0.0
    if way.ran_before:
        before = [(Job(question.prompt, question.params, 0, None), question) for question in questions]
        run_jobs(engine, [job for job, _ in before])
        worst = _check_answers(engine, way, before)
        assert (engine.pool.evicted > 0) == (way.cache == "evicted"), way
    preempt = Preempt(way.every)
    foretell = Foretell([question.expected.ids for _, question in asked])

    def between(engine: Engine, iteration: int) -> None:
        preempt(engine, iteration)
        foretell(engine)

    run_jobs(engine, jobs, between)
    worst = max(worst, _check_answers(engine, way, asked))
    _check_way(engine, way, asked, preempt.count)
    return worst


class Preempt:
    """Between iterations: every so often the one that runs and ranks last loses its blocks.

    One that runs alone is spared until it has a new token: else it would begin its prompt again for ever.
    """

    def __init__(self, every: int) -> None:
        self.every, self.count = every, 0
        self._tokens: dict[str, int] = {}

    def __call__(self, engine: Engine, iteration: int) -> None:
        running = engine.scheduler.running
        if self.every == NEVER or iteration % self.every or not running:
            return
        victim = next(reversed(running.values()))
        tokens = len(victim.output_ids)
        if len(running) > 1 or self._tokens.get(victim.request_id) != tokens:
            self._tokens[victim.request_id] = tokens
            engine.scheduler.preempt(victim)
            self.count += 1


class Foretell:
    """Between iterations: whoever runs is given guesses at its answer, one in five of them wrong. Few of these texts
    repeat themselves, and what would be looked up in them would hardly ever be right."""

    def __init__(self, answers: Sequence[list[int]]) -> None:
        self._answers = answers

    def __call__(self, engine: Engine) -> None:
        for request in engine.scheduler.running.values():
            if not isinstance(request.lookup, _Foretold):
                number = int(request.request_id.removeprefix("job-"))
                request.lookup = _Foretold(len(request.prompt_ids), self._answers[number])


class _Foretold(PromptLookup):
    def __init__(self, prompt: int, answer: list[int]) -> None:
        super().__init__(1)
        self._prompt = prompt
        self._answer = [abs(token - 1) if place % 5 == 3 else token for place, token in enumerate(answer)]

    def guess(self, num_tokens: int, tokens: Callable[[int, int], Sequence[int]], room: int) -> list[int]:
        place = num_tokens - self._prompt
        return self._answer[place : place + min(room, 4)]

    def learn(self, guessed: int, right: int) -> None:
        pass


def _with_twins(way: Way, questions: Sequence[Question]) -> list[tuple[Job, Question]]:
    """The questions in waves of half a batch; before every third one its twin, which is cancelled sooner or later."""
    asked = []
    for number, question in enumerate(questions):
        arrives = number // max(1, way.batch // 2)
        if way.cancels and number % 3 == 0:
            leaves = arrives + 1 + 5 * number % 13
            asked.append((Job(question.prompt, question.params, arrives, leaves), question))
        asked.append((Job(question.prompt, question.params, arrives, None), question))
    return asked


def _check_answers(engine: Engine, way: Way, asked: Sequence[tuple[Job, Question]]) -> float:
    """Every answer is transformers', or the beginning of it up to a cancel, and all blocks are free again."""
    worst = 0.0
    for job, question in asked:
        ids = question.expected.ids
        if _is_cancelled(job):
            assert job.leaves is not None, way
            ids = ids[: len(job.ids)]
        else:
            assert job.text == question.text, way
        assert job.ids == ids, f"{way}: prompt {job.prompt}"
        worst = max(worst, largest_difference(question.expected, ids, _logprobs(job), TOP))
    assert worst < LARGEST_DIFFERENCE, way
    engine.pool.check()
    assert (engine.pool.held_count, engine.pool.available_count) == (0, engine.pool.num_blocks), way
    return worst


def _check_way(engine: Engine, way: Way, asked: Sequence[tuple[Job, Question]], preemptions: int) -> None:
    """What the way says did come about."""
    assert (preemptions > 0) == (way.every != NEVER), way
    assert any(_is_cancelled(job) for job, _ in asked) == way.cancels, way
    assert (engine.pool.evicted > 0) == (way.cache == "evicted"), way
    assert (engine.pool.cached_count > 0) == (way.cache != "off"), way
    if way.cache == "hot":
        for job, _ in asked:
            cached = job.finish.cached_tokens if job.finish else 0
            assert _is_cancelled(job) or cached >= (len(job.prompt) - 1) // way.block * way.block, way
    rows = [row for record in engine.ledger.records for row in record.rows]
    drafted, accepted = sum(row.drafted for row in rows), sum(row.accepted for row in rows)
    assert drafted == accepted == 0 or way.drafts, way
    if not any((way.every, way.cancels, way.cache == "evicted")):
        assert way.drafts == 0 or accepted > 10, way
        assert way.drafts == 0 or drafted > accepted, way
        most = max(len(record.rows) for record in engine.ledger.records)
        assert min(way.batch, len(asked)) // 2 <= most <= way.batch, way


def _is_cancelled(job: Job) -> bool:
    assert job.finish is not None
    return job.finish.finish_reason is FinishReason.CANCELLED


def _logprobs(job: Job) -> list[TokenLogprobs]:
    parts = [*job.deltas, *([job.finish] if job.finish else [])]
    return [token for part in parts for token in part.logprobs or ()]
