"""Matrices of four bits are kept as a GGUF file has them, and mean the weights that were made of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.models import PagedSequences, load_llama, small_vocabulary, tiny_llama, write_gguf

from inference.execution.models.gguf import convert_gguf
from inference.execution.models.shards import FOUR_BITS
from inference.execution.models.weights import WeightFolder
from inference.execution.runner import ModelRunner
from kernels.cpu import native

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}


@pytest.fixture(params=["Q4_0", "Q4_1"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write_gguf(tmp_path / "tiny.gguf", tiny_llama(**SIZES), request.param, small_vocabulary())
    return convert_gguf(tmp_path / "tiny.gguf", tmp_path / "cache", lambda line: None)


MATRICES = {
    "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (32, 64),
    "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (96, 64),
    "mlp.down_proj": (64, 96),
}


@pytest.mark.parametrize("name", MATRICES)
def test_they_are_the_weights(folder: Path, name: str) -> None:
    weights, shape = WeightFolder(folder, torch.float32, torch.device("cpu")), MATRICES[name]
    found = weights.take_four_bits(f"model.layers.1.{name}.weight", *shape)
    assert found is not None
    scale, minimum = (part.float().repeat_interleave(32, 1) for part in (found.scale, found.minimum))
    assert torch.equal(scale * found.bits + minimum, weights.take(f"model.layers.1.{name}.weight", *shape))
    assert found.bits.max() <= 15


def test_norms_and_embeddings_have_none(folder: Path) -> None:
    weights = WeightFolder(folder, torch.float32, torch.device("cpu"))
    assert weights.take_four_bits("model.embed_tokens.weight", 199, 64) is None
    assert weights.take_four_bits("model.norm.weight", 1, 64) is None


def test_other_types_keep_nothing_twice(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_llama(**SIZES), "Q8_0", small_vocabulary())
    folder = convert_gguf(tmp_path / "tiny.gguf", tmp_path / "cache", lambda line: None)
    assert not (folder / FOUR_BITS).exists()
    assert WeightFolder(folder, torch.float32, torch.device("cpu")).take_four_bits("x", 1, 32) is None


@pytest.mark.skipif(not native.available, reason="there is no C++ compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_computes_the_same_to_the_last_bit_with_and_without_them(folder: Path, dtype: torch.dtype) -> None:
    sequences = [np.random.default_rng(i).integers(0, 199, 5 + i).tolist() for i in range(4)]

    def logits() -> list[torch.Tensor]:
        model = load_llama(folder, dtype)
        paged = PagedSequences(sequences, 16, num_blocks=16)
        runner = ModelRunner(model, model.new_cache(16, 16))
        return [runner.execute(paged.batch([(i, 1) for i in range(4)])) for _ in range(5)]

    with_them = logits()
    (folder / FOUR_BITS).unlink()
    assert all(map(torch.equal, with_them, logits()))
