"""The carrying test: whatever the schedule, every answer is the one its request gets alone.

Random arrivals and cancels, a pool too small, many block and chunk sizes; the pool's equation after every step.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from support.models import load_llama, tiny_llama
from support.toy import WIDTH, ToyTokenizer, alone, toy_engine

from inference import Engine, EngineConfig, SamplingParams
from inference.scheduling.outputs import RequestFinish, TokenDelta

LONGEST = 60  # prompt and answer together


def random_request(rng: random.Random, width: int) -> tuple[list[int], SamplingParams]:
    prompt = [rng.randrange(1, width) for _ in range(rng.randint(1, LONGEST // 2))]
    sampled = rng.random() < 0.5
    params = SamplingParams(
        max_tokens=rng.randint(1, LONGEST - len(prompt)),
        temperature=rng.choice([0.7, 1.5]) if sampled else 0.0,
        top_k=rng.choice([0, 5]),
        top_p=rng.choice([1.0, 0.8]),
        seed=rng.randrange(1 << 40),
        stop=rng.choice([(), ("abc",), ("é€", "ab a")]),
        ignore_eos=rng.random() < 0.2,
    )
    return prompt, params


class Rig:
    """Feeds an engine at random and keeps what comes out."""

    def __init__(self, engine: Engine, rng: random.Random) -> None:
        self.engine, self.rng = engine, rng
        self.requests: dict[str, tuple[list[int], SamplingParams]] = {}
        self.deltas: dict[str, list[TokenDelta]] = {}
        self.ends: dict[str, RequestFinish] = {}
        self.preemptions = 0
        # Small budgets take more iterations; about the same number of requests should meet a cancel.
        self.cancel_rate = min(0.03, 0.001 * engine.config.max_num_batched_tokens)

    def run(self, count: int, width: int) -> None:
        while len(self.requests) < count or self.engine.has_work:
            if len(self.requests) < count and self.rng.random() < 0.4:
                prompt, params = random_request(self.rng, width)
                request_id = self.engine.add_request(prompt, params)
                self.requests[request_id] = (prompt, params)
                self.deltas[request_id] = []
            if self.requests and self.rng.random() < self.cancel_rate:
                self.engine.cancel(self.rng.choice(list(self.requests)))
            self.step()

    def step(self) -> None:
        output = self.engine.step()
        self.engine.pool.check()
        for delta in output.deltas:
            self.deltas[delta.request_id].append(delta)
        for end in output.finishes:
            assert end.request_id not in self.ends, "one final state"
            self.ends[end.request_id] = end
        if output.record:
            self.preemptions += len(output.record.preempted)
            kv = output.record.kv
            assert kv.free + kv.cached + kv.used == kv.total

    def check(self, solo: Any) -> int:
        """Compare with each request's solo run; how many were compared whole."""
        whole = 0
        for request_id, (prompt, params) in self.requests.items():
            deltas, end = self.deltas[request_id], self.ends[request_id]
            assert [delta.seq for delta in deltas] == list(range(1, len(deltas) + 1))
            assert end.seq == len(deltas) + 1
            text = "".join(delta.text for delta in deltas)
            ids = [i for delta in deltas for i in delta.token_ids] + end.token_ids
            assert end.completion_tokens == len(ids)
            expected = solo(prompt, params)
            if end.finish_reason == "cancelled":
                assert expected.token_ids[: len(ids)] == ids
                continue
            assert (ids, text, end.finish_reason) == (expected.token_ids, expected.text, expected.finish_reason)
            whole += 1
        assert self.engine.pool.free_count == self.engine.pool.num_blocks
        return whole


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("chunk", ["1", "7", "block-1", "block", "block+1", "whole"])
def test_every_answer_is_its_solo_answer(block_size: int, chunk: str) -> None:
    budgets = {"1": 1, "7": 7, "block-1": block_size - 1, "block": block_size, "block+1": block_size + 1, "whole": 512}
    budget = max(1, budgets[chunk])
    preempted = 0
    for seed in range(4):
        rng = random.Random(f"{block_size} {chunk} {seed}")
        engine = toy_engine(
            block_size=block_size,
            kv_blocks=-(-LONGEST // block_size) + rng.choice([0, 2, 30 // block_size]),
            max_num_seqs=min(budget, rng.choice([2, 7])),
            max_num_batched_tokens=budget,
        )
        rig = Rig(engine, rng)
        rig.run(16, WIDTH)
        assert rig.check(alone) > 8
        preempted += rig.preemptions
    assert preempted > 0 or budget == 1  # one seat has nobody to preempt


@pytest.mark.parametrize(("seed", "block_size", "budget"), [(0, 1, 7), (1, 4, 16), (2, 16, 128)])
def test_a_real_decoder_in_float32(tmp_path: Path, seed: int, block_size: int, budget: int) -> None:
    tiny_llama().save_pretrained(tmp_path)
    model = load_llama(tmp_path)
    tokenizer = ToyTokenizer()
    tokenizer.pieces._bytes += [b"x"] * (model.vocab_size - WIDTH)

    def engine(**settings: int) -> Engine:
        return Engine.from_parts(EngineConfig(**settings), model, tokenizer)

    roomy = engine(kv_blocks=512, max_num_seqs=1, max_num_batched_tokens=512)
    rng = random.Random(seed)
    small = engine(
        block_size=block_size,
        kv_blocks=-(-LONGEST // block_size) + 2,
        max_num_seqs=6,
        max_num_batched_tokens=budget,
    )
    rig = Rig(small, rng)
    rig.run(16, model.vocab_size)
    assert rig.check(lambda prompt, params: roomy.generate([prompt], params)[0]) > 8
    assert rig.preemptions > 0


def test_the_toy_model_ends_some_answers_by_itself() -> None:
    """Else the tests above would only ever see answers that are cut by length."""
    rng = random.Random(3)
    reasons = {alone(*random_request(rng, WIDTH)).finish_reason for _ in range(30)}
    assert reasons == {"stop", "length"}
