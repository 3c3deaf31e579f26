"""Random arrivals, cancels, a pool that is too small: every text equals the same request run alone."""

import random
from functools import partial

import pytest
from support.carrying import Job, check_jobs, random_jobs, run_alone, run_jobs, tight_settings
from support.toy import VOCAB, ToyModel, toy_engine

from inference.engine import Engine

CHUNKS = {"1": lambda size: 1, "7": lambda size: 7, "block-1": lambda size: max(1, size - 1),
          "block": lambda size: size, "block+1": lambda size: size + 1, "whole": lambda size: None}  # fmt: skip


def jobs_of(seed: int, count: int, longest: int = 50) -> tuple[random.Random, list[Job]]:
    draw = random.Random(seed)
    return draw, random_jobs(draw, range(1, VOCAB), count, longest, stop=("qj", "dd", "é"))


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_answers_do_not_depend_on_the_company(block_size: int, chunk: str) -> None:
    preemptions = 0
    for seed in range(4):
        draw, jobs = jobs_of(seed, 16, longest=40 + 8 * block_size)
        make = partial(toy_engine, ToyModel(seed=seed, eos_bonus=-1.0))
        engine = make(**tight_settings(draw, jobs, block_size, CHUNKS[chunk](block_size)))
        preemptions += run_jobs(engine, jobs)
        check_jobs(engine, jobs, run_alone(make, jobs))
    assert preemptions > 0, "the pool was not too small"


@pytest.mark.parametrize("every", [1, 2, 3, 7])
def test_answers_do_not_depend_on_preemption(every: int) -> None:
    def preempt(engine: Engine, iteration: int) -> None:
        running = engine.scheduler.running
        if iteration % every == 0 and running:
            engine.scheduler.preempt(next(reversed(running.values())))

    for seed in range(3):
        _, jobs = jobs_of(seed, 8)
        engine = toy_engine(kv_blocks=256, max_num_batched_tokens=256)
        run_jobs(engine, jobs, preempt)
        check_jobs(engine, jobs, run_alone(toy_engine, jobs))


@pytest.mark.parametrize("batch", [1, 2, 7, 64])
def test_answers_do_not_depend_on_the_size_of_the_batch(batch: int) -> None:
    _, jobs = jobs_of(100, 64)
    engine = toy_engine(kv_blocks=2000, max_num_seqs=batch, max_num_batched_tokens=512)
    run_jobs(engine, jobs)
    check_jobs(engine, jobs, run_alone(toy_engine, jobs))
