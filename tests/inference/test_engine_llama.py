"""The engine with a small random Llama in float32, through the real loader, kernels, sampler and tokenizer."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.carrying import check_jobs, random_jobs, run_alone, run_jobs, tight_settings
from transformers import LlamaForCausalLM

from inference import Engine, EngineConfig, SamplingParams
from inference.execution.models.loader import load_model
from inference.text.tokenizer import load_tokenizer

# Logits differ in the last bits between batches of different shapes. A low temperature leaves few tokens to choose,
# so that a seed's number hardly ever falls between the two roundings of one token's share.
jobs_of = partial(random_jobs, vocabulary=range(3, 259), temperatures=(0.0, 0.4))


@pytest.fixture(scope="module")
def make(tiny_folder: Path) -> Callable[..., Engine]:
    """Engines over one model, by settings."""
    loaded = load_model(EngineConfig(model=str(tiny_folder), dtype="float32", device="cpu"))
    tokenizer = load_tokenizer(tiny_folder)

    def make(**settings: Any) -> Engine:
        return Engine.from_parts(EngineConfig(dtype="float32", **settings), loaded.model, tokenizer)

    return make


@pytest.mark.parametrize(("block_size", "chunk"), [(1, 7), (4, 1), (4, 5), (16, 15), (16, None)])
def test_answers_do_not_depend_on_the_company(make: Callable[..., Engine], block_size: int, chunk: int | None) -> None:
    preemptions = 0
    for seed in range(3):
        draw = random.Random(seed)
        jobs = jobs_of(draw, count=12, longest=40 + 8 * block_size, stop=("a", "é"))
        engine = make(**tight_settings(draw, jobs, block_size, chunk))
        preemptions += run_jobs(engine, jobs)
        check_jobs(engine, jobs, run_alone(make, jobs))
    assert preemptions > 0, "the pool was not too small"


@pytest.mark.parametrize("every", [1, 3])
def test_answers_do_not_depend_on_preemption(make: Callable[..., Engine], every: int) -> None:
    def preempt(engine: Engine, iteration: int) -> None:
        running = engine.scheduler.running
        if iteration % every == 0 and running:
            engine.scheduler.preempt(next(reversed(running.values())))

    jobs = jobs_of(random.Random(every), count=6, longest=40, stop=("a",))
    engine = make(kv_blocks=64, max_num_batched_tokens=256)
    run_jobs(engine, jobs, preempt)
    check_jobs(engine, jobs, run_alone(make, jobs))


def test_greedy_answers_equal_transformers(make: Callable[..., Engine], tiny_folder: Path) -> None:
    peer = LlamaForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()
    draw = random.Random(1)
    prompts = [[draw.randrange(3, 259) for _ in range(length)] for length in (1, 2, 17, 40, 64)]
    engine = make(kv_blocks=9, max_num_batched_tokens=64)
    outputs = engine.generate(prompts, SamplingParams(max_tokens=40, temperature=0.0))
    assert sum(len(record.preempted) for record in engine.ledger.records) > 0
    for prompt, output in zip(prompts, outputs, strict=True):
        ids = torch.tensor([prompt])
        expected = peer.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False, pad_token_id=0
        )
        assert output.token_ids == expected[0, len(prompt) :].tolist()


def test_an_engine_is_made_from_a_configuration(tiny_folder: Path) -> None:
    engine = Engine(EngineConfig(model=str(tiny_folder), dtype="float32", device="cpu", kv_blocks=20))
    outputs = engine.generate(["ab é", "c"], SamplingParams(max_tokens=8, temperature=0.0))
    assert [output.prompt_tokens for output in outputs] == [5, 1]
    for output in outputs:
        assert output.text == engine.tokenizer.decode(output.token_ids)
    assert (engine.max_model_len, engine.pool.num_blocks, engine.model_name) == (512, 20, tiny_folder.name)
