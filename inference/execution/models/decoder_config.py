"""What config.json says of a decoder, checked.

Knows: Hugging Face's names, old and new (transformers 4 and 5). Must not know: torch, tensors.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference.execution.models.errors import ModelError

ARCHITECTURES = ("LlamaForCausalLM",)


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    rope_theta: float
    rope_scaling: dict[str, Any] = field(default_factory=dict)
    eos_token_ids: frozenset[int] = frozenset()


def read_config(folder: Path) -> DecoderConfig:
    """DecoderConfig of a model folder. Raises ModelError for what is missing, wrong or not supported."""
    raw = _read_json(folder / "config.json")
    if raw is None:
        raise ModelError(f"{folder} holds no config.json, so it is no model folder.")
    architecture = (raw.get("architectures") or ["(none named)"])[0]
    if architecture not in ARCHITECTURES:
        raise ModelError(f"models of architecture {architecture} are not supported; there are: {_list(ARCHITECTURES)}.")
    for flag in ("attention_bias", "mlp_bias"):
        if raw.get(flag):
            raise ModelError(f"Llama models with {flag} are not supported.")
    if raw.get("hidden_act", "silu") != "silu":
        raise ModelError(f"the activation {raw['hidden_act']!r} is not supported; 'silu' is.")
    if "quantization_config" in raw:
        raise ModelError("folders with quantised weights are not supported; plain safetensors and GGUF files are.")
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    heads = _size(raw, "num_attention_heads")
    config = DecoderConfig(
        hidden_size=_size(raw, "hidden_size"),
        intermediate_size=_size(raw, "intermediate_size"),
        num_layers=_size(raw, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=_size(raw, "num_key_value_heads", heads),
        head_dim=_size(raw, "head_dim", _size(raw, "hidden_size") // heads),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        vocab_size=_size(raw, "vocab_size"),
        max_position_embeddings=_size(raw, "max_position_embeddings", 2048),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        rope_theta=float(rope.get("rope_theta", raw.get("rope_theta", 10000.0))),
        rope_scaling=rope if rope.get("rope_type", rope.get("type", "default")) != "default" else {},
        eos_token_ids=_eos(raw, _read_json(folder / "generation_config.json") or {}),
    )
    if config.num_heads % config.num_kv_heads or config.head_dim % 2:
        raise ModelError(
            f"{config.num_heads} heads of {config.head_dim} dims over {config.num_kv_heads} KV heads can't be run."
        )
    return config


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} can't be read: {error}.") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object.")
    return value


def _size(raw: dict[str, Any], name: str, default: int | None = None) -> int:
    value = raw.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelError(f"config.json says {name} is {value!r}; it must be a positive whole number.")
    return value


def _eos(raw: dict[str, Any], generation: dict[str, Any]) -> frozenset[int]:
    """One id or several; generation_config.json has the last word, as in transformers."""
    value = generation.get("eos_token_id")
    value = raw.get("eos_token_id") if value is None else value
    ids = value if isinstance(value, list) else [value]
    return frozenset(i for i in ids if isinstance(i, int))


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names)
