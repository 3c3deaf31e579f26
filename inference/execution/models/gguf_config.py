"""What a GGUF file's metadata and tensor names mean in Hugging Face's terms.

Knows: the GGUF architectures of the native family, and what llama.cpp's converter did to each. Must not know: torch,
files, what the bytes of a tensor mean.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from inference.execution.models.errors import ModelError
from inference.execution.models.gguf_tokenizer import end_ids


class Architecture(NamedTuple):
    """interleaved: q and k are stored with the rotary halves of each head as neighbours."""

    class_name: str
    model_type: str
    interleaved: bool


ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", "llama", True),  # Mistral's files too
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2", False),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3", False),
}
ROPE_FACTORS = "rope_freqs.weight"  # divisors of the rotary frequencies: how llama.cpp keeps Llama 3's scaling
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def model_config(
    metadata: Mapping[str, Any], tensor_names: Collection[str], rope_factors: np.ndarray | None = None
) -> dict[str, Any]:
    """config.json in Hugging Face's form. `rope_factors`: the tensor of that name, where the file has one.

    Raises ModelError for what the decoder does not do, and for what the file should say and does not.
    """
    name = metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        there = ", ".join(ARCHITECTURES)
        raise ModelError(f"GGUF models of architecture {name!r} are not supported; there are: {there}.")
    kind = ARCHITECTURES[name]
    if metadata.get(f"{name}.expert_count", 0):
        raise ModelError("GGUF models with experts are not supported.")

    def count(key: str, default: int | None = None) -> int:
        value = metadata.get(f"{name}.{key}", default)
        if value is None:
            raise ModelError(f"the GGUF file does not say {name}.{key}.")
        if isinstance(value, list):
            raise ModelError(f"GGUF models whose layers differ are not supported ({name}.{key} is a list).")
        if type(value) is not int or value < 1:
            raise ModelError(f"the GGUF file says {name}.{key} is {value!r}; it must be a positive whole number.")
        return value

    width, heads = count("embedding_length"), count("attention.head_count")
    head_dim = count("attention.key_length", width // heads)
    if (rotated := count("rope.dimension_count", head_dim)) != head_dim:
        raise ModelError(f"GGUF models that rotate {rotated} of {head_dim} dims of a head are not supported.")
    return {
        "architectures": [kind.class_name],
        "model_type": kind.model_type,
        "hidden_act": "silu",
        "hidden_size": width,
        "intermediate_size": count("feed_forward_length"),
        "num_hidden_layers": count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": count("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "attention_bias": "blk.0.attn_q.bias" in tensor_names,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensor_names,
        "rms_norm_eps": _decimal(metadata, f"{name}.attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": count("context_length"),
        "vocab_size": len(metadata.get("tokenizer.ggml.tokens", ())),
        "tie_word_embeddings": "output.weight" not in tensor_names,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": end_ids(metadata),
        "dtype": "float32",
        **_rope(metadata, name, head_dim, rope_factors),
    }


def _rope(
    metadata: Mapping[str, Any], name: str, head_dim: int, factors: np.ndarray | None
) -> dict[str, float | dict[str, Any]]:
    theta = _decimal(metadata, f"{name}.rope.freq_base", 10000.0)
    scaling = metadata.get(f"{name}.rope.scaling.type", "none")
    if factors is not None and scaling == "none":
        parameters = _llama3(np.asarray(factors, np.float64).reshape(-1), theta, head_dim)
    elif scaling == "linear" and factors is None:
        parameters = {"rope_type": "linear", "factor": _decimal(metadata, f"{name}.rope.scaling.factor")}
    elif scaling == "none":
        return {"rope_theta": theta}
    else:
        raise ModelError(f"the GGUF's rotary scaling ({scaling}) is not supported; take the model as safetensors.")
    return {"rope_theta": theta, "rope_parameters": parameters | {"rope_theta": theta}}


def _llama3(factors: np.ndarray, theta: float, head_dim: int) -> dict[str, Any]:
    """Llama 3's scaling from the divisors it makes: 1 for short waves, the factor for long ones, blended between."""
    largest = float(factors.max(initial=1.0))
    parameters = {"rope_type": "llama3", "factor": largest, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    parameters["original_max_position_embeddings"] = original = 8192
    waves = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((original / waves - 1.0) / (4.0 - 1.0), 0.0, 1.0)
    expected = 1.0 / ((1.0 - smooth) / largest + smooth)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise ModelError("the GGUF's rotary factors are not Llama 3's; take the model as safetensors.")
    return parameters


def hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`. Raises ModelError for an unknown tensor."""
    head, _, kind = name.rpartition(".")
    if kind in ("weight", "bias"):
        if head in OUTER:
            return f"{OUTER[head]}.{kind}"
        parts = head.split(".")
        if len(parts) == 3 and parts[0] == "blk" and parts[1].isdecimal() and parts[2] in INNER:
            return f"model.layers.{parts[1]}.{INNER[parts[2]]}.{kind}"
    raise ModelError(f"the GGUF file has a tensor {name!r} that a decoder of the Llama family has no use for.")


def undo_interleave(name: str, weights: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """llama.cpp stores q and k of the llama architecture with each head's rotary halves interleaved; put them back.

    weights [rows, columns], or a bias [rows].
    """
    part = name.split(".")[-2]
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}.get(part)
    if heads is None or config["architectures"] != [ARCHITECTURES["llama"].class_name]:
        return weights
    half = weights.shape[0] // heads // 2
    return weights.reshape(heads, half, 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def _decimal(metadata: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """GGUF holds float32: the shortest decimal that means it (1e-05, not 9.999999747378752e-06)."""
    value = metadata.get(key, default)
    if value is None:
        raise ModelError(f"the GGUF file does not say {key}.")
    if not isinstance(value, float | int) or not 0 < value < math.inf:
        raise ModelError(f"the GGUF file says {key} is {value!r}; it must be a positive number.")
    return float(str(np.float32(value)))
