"""GGUF metadata in Hugging Face's terms, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from inference.execution.models.errors import ModelError
from inference.execution.models.gguf_config import hugging_face_name, model_config, undo_interleave

LLAMA = {
    "general.architecture": "llama",
    "llama.embedding_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
    "llama.feed_forward_length": 96,
    "llama.block_count": 3,
    "llama.context_length": 128,
    "llama.rope.freq_base": 1e6,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.eot_token_id": 1,
}
QWEN3 = {key.replace("llama.", "qwen3."): value for key, value in LLAMA.items()} | {"general.architecture": "qwen3"}


def test_plain() -> None:
    config = model_config(LLAMA, {"token_embd.weight"})
    assert (config["rms_norm_eps"], config["rope_theta"], config["head_dim"]) == (1e-5, 1e6, 16)
    assert (config["vocab_size"], config["eos_token_id"], config["tie_word_embeddings"]) == (3, [2, 1], True)
    assert "rope_parameters" not in config


def test_what_tensors_tell() -> None:
    config = model_config(QWEN3, {"output.weight", "blk.0.attn_q.bias"})
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert (config["tie_word_embeddings"], config["attention_bias"], config["mlp_bias"]) == (False, True, False)
    assert model_config(QWEN3 | {"qwen3.attention.key_length": 128}, ())["head_dim"] == 128


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"general.architecture": "gemma3"}, "architecture 'gemma3' are not supported; there are: llama, qwen2, qwen3"),
        ({"general.architecture": None}, "architecture None"),
        ({"llama.expert_count": 8}, "experts"),
        ({"llama.block_count": None}, r"does not say llama\.block_count"),
        ({"llama.context_length": "long"}, r"llama\.context_length is 'long'; it must be a positive whole number"),
        ({"llama.attention.head_count": 0}, r"llama\.attention\.head_count is 0"),
        ({"llama.attention.head_count_kv": [2, 1, 2]}, r"layers differ .*head_count_kv is a list"),
        ({"llama.feed_forward_length": [96, 64, 96]}, "layers differ"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "does not say llama.attention.layer_norm_rms_epsilon"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "is nan; it must be a positive number"),
        ({"llama.rope.freq_base": "x"}, r"llama\.rope\.freq_base is 'x'"),
        ({"llama.rope.dimension_count": 8}, "rotate 8 of 16 dims"),
        ({"llama.rope.scaling.type": "yarn"}, r"rotary scaling \(yarn\) is not supported"),
        ({"llama.rope.scaling.type": "linear"}, r"does not say llama\.rope\.scaling\.factor"),
    ],
)
def test_what_is_refused(changes: dict, words: str) -> None:
    metadata = {key: value for key, value in (LLAMA | changes).items() if value is not None}
    with pytest.raises(ModelError, match=words):
        model_config(metadata, ())


@pytest.mark.parametrize("factors", [np.full(8, 4.0), np.linspace(1, 8, 8), np.ones(5), np.zeros(0)])
def test_rotary_factors_that_are_not_llama_3s_are_refused(factors: np.ndarray) -> None:
    with pytest.raises(ModelError, match="rotary factors are not Llama 3's"):
        model_config(LLAMA, (), factors)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("blk.11.attn_q.bias", "model.layers.11.self_attn.q_proj.bias"),
        ("blk.0.attn_k_norm.weight", "model.layers.0.self_attn.k_norm.weight"),
        ("output_norm.weight", "model.norm.weight"),
    ],
)
def test_names(name: str, expected: str) -> None:
    assert hugging_face_name(name) == expected


@pytest.mark.parametrize(
    "name", ["blk.0.attn_qkv.weight", "blk.x.attn_q.weight", "blk.0.attn_q", "rope_factors_long.weight", ""]
)
def test_tensors_without_a_place_are_refused_by_name(name: str) -> None:
    with pytest.raises(ModelError, match=f"a tensor '{name}' that"):
        hugging_face_name(name)


@pytest.mark.parametrize("shape", [(8, 3), (8,)])
def test_only_llamas_q_and_k_are_put_back_in_order(shape: tuple[int, ...]) -> None:
    weights = np.arange(np.prod(shape)).reshape(shape)
    config = {"architectures": ["LlamaForCausalLM"], "num_attention_heads": 2, "num_key_value_heads": 1}
    rows = [0, 2, 1, 3, 4, 6, 5, 7]  # two heads of four: first halves at even places
    np.testing.assert_array_equal(undo_interleave("blk.0.attn_q.weight", weights, config), weights[rows])
    np.testing.assert_array_equal(
        undo_interleave("blk.0.attn_k.bias", weights, config), weights[[0, 2, 4, 6, 1, 3, 5, 7]]
    )
    np.testing.assert_array_equal(undo_interleave("blk.0.attn_v.weight", weights, config), weights)
    other = config | {"architectures": ["Qwen2ForCausalLM"]}
    np.testing.assert_array_equal(undo_interleave("blk.0.attn_q.weight", weights, other), weights)
