"""What goes wrong with one request leaves its batch-mates as they are: a real model, real kernels, real NaN."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import tiny_llama
from support.toy import alone, toy_engine

from inference.config import EngineConfig, SamplingParams
from inference.engine import Engine
from inference.execution.batch_builder import BatchBuilder
from inference.execution.models.loader import load_model
from inference.scheduling.kv_manager import KVManager
from inference.scheduling.plan import ScheduledRow
from inference.scheduling.request import FinishReason, Request
from inference.text.tokenizer import load_tokenizer

POISON = 200  # a token whose embedding is NaN
ROWS = 64


def params(tokens: int = 16) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, logit_bias={POISON: -100})


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(3, POISON) for _ in range(draw.randint(1, 40))] for _ in range(count)]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Callable[..., Engine]:
    """Engines over one model in which the embedding of token POISON is not a number. The head has weights of its own,
    so that only who reads the token is hurt."""
    folder = tmp_path_factory.mktemp("poisoned")
    tiny_llama(vocab_size=259, max_position_embeddings=512, tie_word_embeddings=False).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((tiny_folder / name).read_bytes())
    loaded = load_model(EngineConfig(model=str(folder), dtype="float32", device="cpu"))
    loaded.model._embedding.data[POISON] = torch.nan  # type: ignore[attr-defined]
    tokenizer = load_tokenizer(folder)

    def engine(**settings: Any) -> Engine:
        return Engine.from_parts(EngineConfig(**{"dtype": "float32", **settings}), loaded.model, tokenizer)

    return engine


def run(engine: Engine, wanted: dict[str, list[int]]) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Ids and error codes by name."""
    for name, prompt in wanted.items():
        engine.add_request(prompt, params(), request_id=name)
    ids: dict[str, list[int]] = {name: [] for name in wanted}
    codes: dict[str, str] = {}
    while engine.has_work:
        step = engine.step()
        engine.pool.check()
        for event in (*step.deltas, *step.finishes):
            ids[event.request_id] += event.token_ids
        codes.update({finish.request_id: finish.error_code for finish in step.finishes})
    return ids, codes


def test_one_poisoned_row_of_sixty_four_fails_alone(make: Callable[..., Engine]) -> None:
    wanted = {f"r{i}": prompt for i, prompt in enumerate(prompts(ROWS))}
    expected, _ = run(make(kv_blocks=1024), wanted)
    bad = {**wanted, "r17": [*wanted["r17"], POISON, 5, 6]}
    engine = make(kv_blocks=1024)
    ids, codes = run(engine, bad)
    assert codes == {name: "numerical_error" if name == "r17" else "" for name in wanted}
    assert {n: i for n, i in ids.items() if n != "r17"} == {n: i for n, i in expected.items() if n != "r17"}
    assert ids["r17"] == []


def test_blocks_of_the_poisoned_are_clean_and_never_found(make: Callable[..., Engine]) -> None:
    engine = make(kv_blocks=16, max_num_batched_tokens=64, block_size=4)
    bad = [7, POISON, *range(3, 33)]
    for _ in range(2):
        _, codes = run(engine, {"bad": bad})
        assert codes == {"bad": "numerical_error"}
        assert (engine.pool.cached_count, engine.pool.held_count) == (0, 0)
        assert not any(torch.isnan(cache).any() for layer in engine._passes.runner.cache.layers for cache in layer)
    healthy = {f"r{i}": prompt[:12] for i, prompt in enumerate(prompts(4, seed=3))}
    assert run(engine, healthy)[0] == run(make(kv_blocks=16, max_num_batched_tokens=64, block_size=4), healthy)[0]


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_what_lies_in_free_blocks_has_no_effect(make: Callable[..., Engine], block_size: int) -> None:
    settings = {"kv_blocks": 200 // block_size + 12, "block_size": block_size, "max_num_seqs": 6}
    wanted = {f"r{i}": prompt for i, prompt in enumerate(prompts(24, seed=block_size))}
    expected, _ = run(make(**settings), wanted)
    engine = make(**settings)
    step = engine.step

    def poisoned_step() -> Any:
        held = {b for r in engine.scheduler.running.values() for b in r.block_table} | engine.pool._cached.keys()
        free = [block for block in range(engine.pool.num_blocks) if block not in held]
        for layer in engine._passes.runner.cache.layers:
            for cache in layer:
                cache[free] = torch.nan
        return step()

    engine.step = poisoned_step  # type: ignore[method-assign]
    ids, codes = run(engine, wanted)
    assert set(codes.values()) == {""}
    assert ids == expected


class Poisoned(list):
    """Raises when it is read."""

    def __getitem__(self, place: Any) -> Any:
        raise RuntimeError("a prompt that it can't bear")


def ends_beside_a_healthy_one(poison: Callable[[Request], None] = lambda request: None) -> dict[str, Any]:
    engine = toy_engine()
    p = SamplingParams(max_tokens=8, temperature=1.4, seed=4, ignore_eos=True)
    engine.add_request([5, 6, 7, 8, 9, 10], p, request_id="good")
    engine.add_request([5, 6, 7, 8, 9, 11], p, request_id="bad")
    poison(engine.scheduler.waiting["bad"])
    ids: list[int] = []
    ends: dict[str, Any] = {}
    while engine.has_work:
        step = engine.step()
        engine.pool.check()
        ids += [i for e in (*step.deltas, *step.finishes) if e.request_id == "good" for i in e.token_ids]
        ends.update({f.request_id: (f.finish_reason, f.error_code) for f in step.finishes})
    assert ids == alone([5, 6, 7, 8, 9, 10], p).token_ids
    assert engine.pool.available_count == engine.pool.num_blocks
    return ends


BOTH = {"good": (FinishReason.LENGTH, ""), "bad": (FinishReason.ERROR, "internal")}


def test_a_request_that_raises_while_it_is_scheduled(monkeypatch: pytest.MonkeyPatch) -> None:
    find = KVManager.find

    def choosy(self: KVManager, request: Request) -> list[int]:
        if request.request_id == "bad":
            raise RuntimeError("a prefix that it can't bear")
        return find(self, request)

    monkeypatch.setattr(KVManager, "find", choosy)
    assert ends_beside_a_healthy_one() == BOTH


def test_a_request_that_raises_while_the_batch_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    build = BatchBuilder.build

    def choosy(self: BatchBuilder, rows: list[ScheduledRow]) -> Any:
        if any(row.request.request_id == "bad" for row in rows):
            raise RuntimeError("a row that it can't bear")
        return build(self, rows)

    monkeypatch.setattr(BatchBuilder, "build", choosy)
    assert ends_beside_a_healthy_one() == BOTH


def test_a_request_whose_prompt_raises() -> None:
    def poison(request: Request) -> None:
        request.prompt_ids = Poisoned(request.prompt_ids)

    assert ends_beside_a_healthy_one(poison) == BOTH
