"""The native decoder against transformers: the same logits, whatever the chunks, the blocks and the neighbours."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from support.models import PagedSequences, load_llama, tiny_llama, tiny_model

from inference.execution.runner import ModelRunner

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
SHAPES: dict[str, tuple[str, dict]] = {
    "tied, grouped": ("Llama", {"tie_word_embeddings": True}),
    "untied, one kv head": ("Llama", {"num_key_value_heads": 1}),
    "every head its own kv": ("Llama", {"num_key_value_heads": 4, "rope_theta": 500000.0}),
    "head_dim set apart": ("Llama", {"head_dim": 24, "num_attention_heads": 8, "num_key_value_heads": 4}),
    "head_dim 8": ("Llama", {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3}),
    "head_dim 40": ("Llama", {"hidden_size": 120, "num_attention_heads": 3, "num_key_value_heads": 3}),
    "llama3 scaling": ("Llama", {"rope_parameters": LLAMA3}),
    "linear scaling": ("Llama", {"rope_parameters": LINEAR}),
    "biases of attention": ("Llama", {"attention_bias": True}),
    "biases everywhere": ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral, a window of all its positions": ("Mistral", {"sliding_window": 128, "head_dim": 20}),
    "qwen2": ("Qwen2", {}),
    "qwen2, tied, one kv head": ("Qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "qwen2, a window that no layer has": ("Qwen2", {"use_sliding_window": True, "sliding_window": 8}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3, tied, head_dim 40": ("Qwen3", {"tie_word_embeddings": True, "head_dim": 40, "num_key_value_heads": 4}),
    "qwen3, biases, scaled": ("Qwen3", {"attention_bias": True, "head_dim": 8, "rope_parameters": LINEAR}),
}
LENGTHS = (37, 5, 1, 64)


def sequences() -> list[list[int]]:
    rng = np.random.default_rng(1)
    return [rng.integers(0, 199, length).tolist() for length in LENGTHS]


@torch.inference_mode()
def expected(model: torch.nn.Module) -> list[torch.Tensor]:
    return [model(torch.tensor([ids])).logits[0] for ids in sequences()]


@pytest.mark.parametrize("name", SHAPES)
def test_logits_of_every_position_equal_transformers(name: str, tmp_path: Path) -> None:
    family, changes = SHAPES[name]
    peer = tiny_model(family, **changes)
    peer.save_pretrained(tmp_path)
    ours = load_llama(tmp_path)
    for chunk, block_size in ((1, 4), (7, 16), (16, 16), (17, 1), (64, 16)):
        paged = PagedSequences(sequences(), block_size, num_blocks=64 * 4 // block_size + 8)
        runner = ModelRunner(ours, ours.new_cache(64 * 4 // block_size + 8, block_size))
        got: list[list[torch.Tensor]] = [[] for _ in LENGTHS]
        while counts := [
            (i, min(chunk, n - paged.computed[i])) for i, n in enumerate(LENGTHS) if paged.computed[i] < n
        ]:
            logits = runner.execute(paged.batch(counts))
            assert logits.dtype == torch.float32
            for (i, _), part in zip(counts, logits.split([n for _, n in counts]), strict=True):
                got[i].append(part)
        for mine, theirs in zip(got, expected(peer), strict=True):
            torch.testing.assert_close(torch.cat(mine), theirs, atol=1e-4, rtol=1e-4)


def test_only_wanted_rows_are_given(tmp_path: Path) -> None:
    peer = tiny_llama()
    peer.save_pretrained(tmp_path)
    ours = load_llama(tmp_path)
    runner = ModelRunner(ours, ours.new_cache(64, 8))
    paged = PagedSequences(sequences(), 8, 64)
    logits = runner.execute(paged.batch([(i, n) for i, n in enumerate(LENGTHS)], every_row=False))
    torch.testing.assert_close(logits, torch.stack([e[-1] for e in expected(peer)]), atol=1e-4, rtol=1e-4)


def test_a_chunk_that_wants_no_logits_writes_its_cache(tmp_path: Path) -> None:
    peer = tiny_llama()
    peer.save_pretrained(tmp_path)
    ours = load_llama(tmp_path)
    runner = ModelRunner(ours, ours.new_cache(64, 8))
    paged = PagedSequences(sequences(), 8, 64)
    first = paged.batch([(0, 20)])
    silent = type(first)(**{**{n: getattr(first, n) for n in first.__slots__}, "logits_rows": np.zeros(0, np.int64)})
    assert runner.execute(silent).shape == (0, 199)
    logits = runner.execute(paged.batch([(0, 17)]))
    torch.testing.assert_close(logits, expected(peer)[0][20:], atol=1e-4, rtol=1e-4)


def test_blocks_of_others_full_of_nan_change_nothing(tmp_path: Path) -> None:
    peer = tiny_llama()
    peer.save_pretrained(tmp_path)
    ours = load_llama(tmp_path)
    cache = ours.new_cache(64, 8)
    for layer in cache.layers:
        for tensor in layer:
            tensor.fill_(float("nan"))
    paged = PagedSequences(sequences(), 8, 64)
    logits = ModelRunner(ours, cache).execute(paged.batch([(0, 37)]))
    torch.testing.assert_close(logits, expected(peer)[0], atol=1e-4, rtol=1e-4)


def test_sharded_folder_gives_the_same_model(tmp_path: Path) -> None:
    peer = tiny_llama()
    peer.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    ours = load_llama(tmp_path)
    paged = PagedSequences(sequences(), 8, 64)
    logits = ModelRunner(ours, ours.new_cache(64, 8)).execute(paged.batch([(0, 37)]))
    torch.testing.assert_close(logits, expected(peer)[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_bfloat16_is_as_close_to_float32_as_transformers_bfloat16(family: str, tmp_path: Path) -> None:
    peer = tiny_model(family, initializer_range=0.05)
    peer.save_pretrained(tmp_path)
    exact = expected(peer)[3]
    theirs = expected(peer.to(torch.bfloat16))[3].float()
    ours = load_llama(tmp_path, torch.bfloat16)
    paged = PagedSequences(sequences(), 8, 64)
    mine = ModelRunner(ours, ours.new_cache(64, 8)).execute(paged.batch([(3, 64)]))
    assert (mine - exact).square().mean() < 1.5 * (theirs - exact).square().mean()


def test_end_ids_are_those_of_both_configs_that_the_model_has(tmp_path: Path) -> None:
    peer = tiny_llama(eos_token_id=[2, 9])
    peer.generation_config.eos_token_id = [5, 7]
    peer.save_pretrained(tmp_path)
    assert load_llama(tmp_path).eos_token_ids == {2, 5, 7, 9}
    bad = [3, "4", -1, 199, 198, True, None, 2.0]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": bad}))
    assert load_llama(tmp_path).eos_token_ids == {2, 9, 3, 198}
    (tmp_path / "generation_config.json").unlink()
    assert load_llama(tmp_path).eos_token_ids == {2, 9}


def test_bytes_of_a_block_are_what_the_cache_takes(tmp_path: Path) -> None:
    tiny_llama().save_pretrained(tmp_path)
    ours = load_llama(tmp_path)
    cache = ours.new_cache(10, 16)
    held = sum(tensor.numel() * tensor.element_size() for layer in cache.layers for tensor in layer)
    assert ours.kv_bytes_per_block(16) * 10 == held
