"""Architectures of transformers over the paged cache: the answers of transformers' generate, on any schedule."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.foreign import VOCAB, save_tiny
from support.models import PagedSequences
from transformers import AutoModelForCausalLM

from inference import Engine, EngineConfig, SamplingParams
from inference.execution.models.foreign import ForeignModel, load_foreign
from inference.execution.runner import ModelRunner
from inference.text.tokenizer import load_tokenizer

MLA = {"head_dim": 8, "num_key_value_heads": 4}
UNTIED = {"tie_word_embeddings": False}  # a tied random head says its last token again
SLIDING = {"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
GEMMA4 = {
    "num_hidden_layers": 5,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "full_attention"],
    "global_head_dim": 32,
    "num_kv_shared_layers": 1,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCAB,
}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {}),
    "gpt2, scaled by layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}),
    "gpt_bigcode, one KV head": ("gpt_bigcode", {}),
    "gpt_neox, parallel residual": ("gpt_neox", {}),
    "gptj, rotated pairs": ("gptj", {}),
    "codegen": ("codegen", {}),
    "opt, positions from 2": ("opt", UNTIED),
    "gemma, 256 dims a head": ("gemma", {"head_dim": 256, "num_attention_heads": 2, "num_key_value_heads": 1}),
    "gemma3, windows": ("gemma3_text", SLIDING | UNTIED),
    "gemma4, layers that differ": ("gemma4_text", GEMMA4),
    "phi, part rotated": ("phi", {}),
    "phi3, fused": ("phi3", {}),
    "olmo": ("olmo", {"clip_qkv": 1.0}),
    "olmo2": ("olmo2", {}),
    "olmoe, experts": ("olmoe", {}),
    "stablelm": ("stablelm", {"use_qkv_bias": True, "use_parallel_residual": True}),
    "starcoder2": ("starcoder2", {}),
    "cohere, scaled logits": ("cohere", {}),
    "granite": ("granite", {"attention_multiplier": 0.1, "logits_scaling": 3.0, "residual_multiplier": 0.5}),
    "smollm3, layers without positions": ("smollm3", {}),
    "glm4": ("glm4", {}),
    "nemotron, 20 dims a head": ("nemotron", {"head_dim": 20, "hidden_size": 80, "partial_rotary_factor": 0.5}),
    "mixtral, experts": ("mixtral", {}),
    "deepseek_v3, values narrower than keys": ("deepseek_v3", MLA),
    "diffllama, two calls a layer": ("diffllama", {}),
}
LENGTHS = (1, 2, 9, 23, 40)
ANSWER = 16


def prompts() -> list[list[int]]:
    draw = random.Random(1)
    return [[draw.randrange(3, VOCAB) for _ in range(length)] for length in LENGTHS]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_answers_equal_transformers(name: str, tmp_path: Path, tiny_folder: Path) -> None:
    kind, overrides = ARCHITECTURES[name]
    save_tiny(tmp_path, kind, **overrides)
    model = load_foreign(tmp_path, torch.float32, torch.device("cpu"), None)
    peer = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    check_logits(model, peer)
    tokenizer = load_tokenizer(tiny_folder)
    expected = [greedy(peer, prompt) for prompt in prompts()]
    assert len({token for answer in expected for token in answer}) > 10, "the model says too little to prove anything"
    settings = (
        {},
        {"block_size": 4, "kv_blocks": 17, "max_num_seqs": 5, "prefill_chunk": 5, "max_num_batched_tokens": 16},
        {"block_size": 1, "kv_blocks": 70, "max_num_seqs": 2, "prefill_chunk": 7},
    )
    preempted = 0
    for setting in settings:
        engine = Engine.from_parts(EngineConfig(dtype="float32", **{"kv_blocks": 64, **setting}), model, tokenizer)
        outputs = engine.generate(prompts(), SamplingParams(max_tokens=ANSWER, temperature=0.0, ignore_eos=True))
        assert [output.token_ids for output in outputs] == expected, setting
        preempted += sum(len(record.preempted) for record in engine.ledger.records)
    assert preempted > 0, "the pool was not too small"


def greedy(peer: Any, prompt: list[int]) -> list[int]:
    """transformers' own loop, with its own cache."""
    peer.generation_config.eos_token_id = None
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": ANSWER, "do_sample": False, "pad_token_id": 0}
    return peer.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompt) :].tolist()


def check_logits(model: ForeignModel, peer: Any) -> None:
    with torch.inference_mode():
        expected = [peer(torch.tensor([ids])).logits[0] for ids in prompts()]
    runner = ModelRunner(model, model.new_cache(64, 8))
    paged = PagedSequences(prompts(), 8, 64)
    got: list[list[torch.Tensor]] = [[] for _ in LENGTHS]
    while counts := [(i, min(17, n - paged.computed[i])) for i, n in enumerate(LENGTHS) if paged.computed[i] < n]:
        logits = runner.execute(paged.batch(counts))
        assert logits.dtype == torch.float32
        for (i, _), part in zip(counts, logits.split([n for _, n in counts]), strict=True):
            got[i].append(part)
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(torch.cat(mine), theirs, atol=1e-4, rtol=1e-4)
