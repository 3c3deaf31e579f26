"""The engine's carrying test: whatever happens around a request, its answer is the one it gives alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from inference.config import SamplingParams
from inference.engine import Engine
from inference.scheduling.block_map import BlockMap
from inference.scheduling.ledger import IterationRecord
from inference.scheduling.outputs import Output, RequestFinish, TokenDelta
from inference.scheduling.request import FinishReason
from inference.text.detokenizer import IncrementalDetokenizer

MakeEngine = Callable[..., Engine]  # settings of EngineConfig -> Engine


@dataclass
class Job:
    prompt: list[int]
    params: SamplingParams
    arrives: int  # before this iteration
    leaves: int | None  # the same, for a cancel
    deltas: list[TokenDelta] = field(default_factory=list)
    finish: RequestFinish | None = None

    @property
    def ids(self) -> list[int]:
        sent = [i for delta in self.deltas for i in delta.token_ids]
        return sent + (self.finish.token_ids if self.finish else [])

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)


def random_jobs(
    draw: random.Random,
    vocabulary: range,
    count: int,
    longest: int,
    stop: tuple[str, ...],
    temperatures: Sequence[float] = (0.0, 0.8, 2.0),
) -> list[Job]:
    """Prompts of all lengths, greedy and seeded, some with stop strings, some cancelled sooner or later."""
    jobs = []
    for _ in range(count):
        answer = draw.randint(1, longest // 2)
        params = SamplingParams(
            max_tokens=answer,
            min_tokens=draw.choice([0, 0, answer // 2]),
            temperature=draw.choice(temperatures),
            top_k=draw.choice([0, 5]),
            top_p=draw.choice([1.0, 0.9]),
            seed=draw.randrange(1 << 60),
            stop=draw.choice([(), (), stop]),
            ignore_eos=draw.random() < 0.3,
        )
        prompt = [draw.choice(vocabulary) for _ in range(draw.randint(1, longest // 2))]
        arrives = draw.randint(0, 30)
        jobs.append(Job(prompt, params, arrives, arrives + draw.randint(0, 25) if draw.random() < 0.2 else None))
    return jobs


def run_jobs(engine: Engine, jobs: list[Job], between: Callable[[Engine, int], None] = lambda engine, n: None) -> int:
    """All jobs with their arrivals and cancels; the pool is checked after every step. The number of preemptions."""
    names: dict[str, Job] = {}
    iteration = preemptions = 0
    blocks = BlockMap()
    for record in engine.ledger.records:  # of jobs before these
        blocks.apply(record.blocks, record.kv.total)
    while engine.has_work or len(names) < len(jobs):
        for number, job in enumerate(jobs):
            if job.arrives == iteration:
                names[engine.add_request(job.prompt, job.params, request_id=f"job-{number}")] = job
            if job.leaves == iteration:
                engine.cancel(f"job-{number}")
        between(engine, iteration)
        step = engine.step()
        iteration += 1
        for delta in step.deltas:
            names[delta.request_id].deltas.append(delta)
        for finish in step.finishes:
            if names[finish.request_id].finish is not None:
                raise AssertionError(f"{finish.request_id} finished twice")
            names[finish.request_id].finish = finish
        if step.record is not None:
            preemptions += len(step.record.preempted)
            _follow(blocks, step.record)
        engine.pool.check()
        if iteration > 100_000:
            raise AssertionError("the engine does not come to an end")
    if blocks.held or any(blocks.findable[b] != engine.pool.is_findable(b) for b in range(blocks.total)):
        raise AssertionError("the records' changes of blocks do not lead to the pool's state")
    return preemptions


def _follow(blocks: BlockMap, record: IterationRecord) -> None:
    """The map that records make has what each of them counts."""
    blocks.apply(record.blocks, record.kv.total)
    cached = sum(blocks.findable) - sum(blocks.findable[block] for block in blocks.held)
    if (len(blocks.held), cached) != (record.kv.used, record.kv.cached):
        raise AssertionError(
            f"changes make {len(blocks.held)} held, {cached} cached blocks, and the record says {record.kv}"
        )


def check_jobs(engine: Engine, jobs: list[Job], alone: list[Output]) -> None:
    """Every answer, or its part up to a cancel, is the one that the request gives alone; and everything is free."""
    for job, expected in zip(jobs, alone, strict=True):
        finish = job.finish
        assert finish is not None, "every request has an end"
        assert [delta.seq for delta in job.deltas] == list(range(1, finish.seq))
        if finish.finish_reason is FinishReason.CANCELLED:
            assert job.leaves is not None
            assert job.ids == expected.token_ids[: len(job.ids)]
            assert job.text == _text(engine.tokenizer, job.ids, job.params)
        else:
            assert job.ids == expected.token_ids
            assert job.text == expected.text
            assert finish.finish_reason is expected.finish_reason
        assert finish.completion_tokens == len(job.ids)
    assert engine.pool.available_count == engine.pool.num_blocks
    assert not engine.scheduler.running
    assert not engine.scheduler.waiting


def run_alone(make: MakeEngine, jobs: list[Job]) -> list[Output]:
    engine = make(max_num_seqs=1, max_num_batched_tokens=4096, block_size=16, kv_blocks=256)
    return [engine.generate([job.prompt], job.params)[0] for job in jobs]


def tight_settings(draw: random.Random, jobs: list[Job], block_size: int, chunk: int | None) -> dict[str, Any]:
    """A pool that holds the largest of them, and hardly more."""
    largest = max(-(-(len(job.prompt) + job.params.max_tokens - 1) // block_size) for job in jobs)
    seats = draw.randint(1, 8)
    return {
        "block_size": block_size,
        "kv_blocks": largest + draw.randint(0, max(1, largest // 2)),
        "max_num_seqs": seats,
        "max_num_batched_tokens": seats + draw.choice([0, 3, 40]),
        "prefill_chunk": chunk,
    }


def _text(tokenizer: Any, ids: list[int], params: SamplingParams) -> str:
    detokenizer = IncrementalDetokenizer(tokenizer, params.stop)
    return "".join(map(detokenizer.push, ids)) + detokenizer.finish()
