"""The native decoder against transformers: the same logits, whatever the chunks, the blocks and the neighbours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.models import PagedSequences, load_llama, tiny_llama

from inference.execution.runner import ModelRunner

SHAPES = {
    "tied, grouped": {"tie_word_embeddings": True},
    "untied, one kv head": {"num_key_value_heads": 1},
    "every head its own kv": {"num_key_value_heads": 4, "rope_theta": 500000.0},
    "head_dim set apart": {"head_dim": 24, "num_attention_heads": 8, "num_key_value_heads": 4},
    "llama3 scaling": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
    "linear scaling": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
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
    peer = tiny_llama(**SHAPES[name])
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


def test_bfloat16_is_as_close_to_float32_as_transformers_bfloat16(tmp_path: Path) -> None:
    peer = tiny_llama(initializer_range=0.05)
    peer.save_pretrained(tmp_path)
    exact = expected(peer)[3]
    theirs = expected(peer.to(torch.bfloat16))[3].float()
    ours = load_llama(tmp_path, torch.bfloat16)
    paged = PagedSequences(sequences(), 8, 64)
    mine = ModelRunner(ours, ours.new_cache(64, 8)).execute(paged.batch([(3, 64)]))
    assert (mine - exact).square().mean() < 1.5 * (theirs - exact).square().mean()


def test_end_ids_come_from_the_generation_config_first(tmp_path: Path) -> None:
    peer = tiny_llama()
    peer.generation_config.eos_token_id = [5, 7]
    peer.save_pretrained(tmp_path)
    assert load_llama(tmp_path).eos_token_ids == {5, 7}
    (tmp_path / "generation_config.json").unlink()
    assert load_llama(tmp_path).eos_token_ids == {2}


def test_bytes_of_a_block_are_what_the_cache_takes(tmp_path: Path) -> None:
    tiny_llama().save_pretrained(tmp_path)
    ours = load_llama(tmp_path)
    cache = ours.new_cache(10, 16)
    held = sum(tensor.numel() * tensor.element_size() for layer in cache.layers for tensor in layer)
    assert ours.kv_bytes_per_block(16) * 10 == held
