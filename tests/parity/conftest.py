"""The default model twice, ours and transformers', and real questions for both."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from inference.config import EngineConfig, SamplingParams
from inference.engine import Engine
from inference.execution.models.loader import LoadedModel, load_model
from inference.text.tokenizer import load_tokenizer

QUESTIONS = Path(__file__).parents[1] / "data" / "mt_bench_questions.jsonl"
COUNT, TOKENS, END = 50, 48, 2
GREEDY = SamplingParams(temperature=0.0, max_tokens=TOKENS)


@pytest.fixture(scope="session")
def ours() -> LoadedModel:
    return load_model(EngineConfig(dtype="float32", device="cpu"))


@pytest.fixture(scope="session")
def ours_bfloat16() -> LoadedModel:
    return load_model(EngineConfig(dtype="bfloat16", device="cpu"))


@pytest.fixture(scope="session")
def peer(ours: LoadedModel) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(ours.tokenizer_folder, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def prompts(ours: LoadedModel) -> list[list[int]]:
    """The first turns of 50 MT-Bench questions, through transformers' own chat template and tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(ours.tokenizer_folder)
    questions = [json.loads(line)["turns"][0] for line in QUESTIONS.read_text().splitlines()[:COUNT]]
    chats = [[{"role": "user", "content": question}] for question in questions]
    return [tokenizer.apply_chat_template(c, add_generation_prompt=True, return_dict=False) for c in chats]


def engine_of(loaded: LoadedModel, **settings: int) -> Engine:
    config = EngineConfig(dtype=loaded.dtype, device=loaded.device)
    tokenizer = load_tokenizer(loaded.tokenizer_folder)
    return Engine.from_parts(replace(config, **settings), loaded.model, tokenizer, loaded.name)


@dataclass(frozen=True)
class Best:
    """transformers' five best tokens at each place of an answer and at the one after it: ids, nats below the best."""

    ids: torch.Tensor  # [len(answer) + 1, 5]
    below: torch.Tensor


@torch.inference_mode()
def best_tokens(peer: PreTrainedModel, prompt: list[int], ids: list[int]) -> Best:
    """One forward pass. Where the best tokens are `ids`, `generate` gives `ids`: by induction over their places."""
    logits = peer(torch.tensor([prompt + ids]), logits_to_keep=len(ids) + 1).logits[0]
    best = logits.topk(5)
    return Best(best.indices, best.values[:, :1] - best.values)


@torch.inference_mode()
def generated(peer: PreTrainedModel, prompt: list[int]) -> list[int]:
    """What transformers' `generate` answers, without the end token."""
    ids = torch.tensor([prompt])
    answer = peer.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False, pad_token_id=END
    )[0, len(prompt) :].tolist()
    return without_end(answer)


def without_end(ids: list[int]) -> list[int]:
    return ids[:-1] if ids and ids[-1] == END else ids
