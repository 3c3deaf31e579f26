"""What config.json says of a decoder, checked; and which decoders are ours to run.

Knows: Hugging Face's names, old and new (transformers 4 and 5), and the native family's architectures. Must not know:
torch, tensors.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference.execution.models.errors import ModelError

MAX_SIZE = 1 << 24  # of anything config.json counts: a wrong number must not become a table that fills the memory
ROPE_KINDS = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class Family:
    """What an architecture is where its config.json does not say so: transformers' defaults of the same class.

    qkv_bias, qk_norm: always there.  switches: the biases that config.json may turn on.  window: of every layer.
    """

    positions: int
    kv_heads: int | None = None
    head_dim: int | None = None
    qkv_bias: bool = False
    qk_norm: bool = False
    switches: frozenset[str] = frozenset()
    window: int | None = None


FAMILIES = {
    "LlamaForCausalLM": Family(2048, switches=frozenset(("attention_bias", "mlp_bias"))),
    "MistralForCausalLM": Family(131072, kv_heads=8, window=4096),
    "Qwen2ForCausalLM": Family(32768, kv_heads=32, qkv_bias=True),
    "Qwen3ForCausalLM": Family(32768, kv_heads=32, head_dim=128, qk_norm=True, switches=frozenset(("attention_bias",))),
}


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """sliding_window: positions that a token attends to, itself included; None: all. We attend to all, so such a model
    runs up to that length. eos_token_ids: those of config.json and generation_config.json, ids of the model only."""

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
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None

    @property
    def longest(self) -> int:
        """Positions that the model can be run with."""
        return min(self.max_position_embeddings, self.sliding_window or self.max_position_embeddings)


def read_raw(folder: Path) -> dict[str, Any]:
    """config.json of a model folder. Raises ModelError where there is none, or for what no model of ours can be."""
    raw = _read_json(folder / "config.json")
    if raw is None:
        raise ModelError(f"{folder} holds no config.json, so it is no model folder.")
    if raw.get("quantization_config") is not None:
        raise ModelError("folders with quantised weights are not supported; plain safetensors and GGUF files are.")
    return raw


def end_ids(folder: Path, vocab_size: int) -> frozenset[int]:
    """Ids that end an answer: of config.json and generation_config.json, one or a list in each. What is no id of this
    model can't end an answer and is passed over."""
    found: list[Any] = []
    for name in ("config.json", "generation_config.json"):
        value = (_read_json(folder / name) or {}).get("eos_token_id")
        found += value if isinstance(value, list) else [value]
    return frozenset(i for i in found if type(i) is int and 0 <= i < vocab_size)


def architecture(raw: dict[str, Any]) -> str:
    """The first that config.json names, else the text decoder of its model_type; "" where it says neither."""
    names = raw.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    kind = raw.get("model_type")
    return f"{kind.capitalize()}ForCausalLM" if isinstance(kind, str) else ""


def is_native(raw: dict[str, Any]) -> bool:
    """Whether the native decoder computes exactly what this config.json describes."""
    usual = raw.get("hidden_act", "silu") == "silu" and _rope_kind(_rope(raw)) in ROPE_KINDS
    return architecture(raw) in FAMILIES and usual


def read_config(folder: Path) -> DecoderConfig:
    """DecoderConfig of a folder with a native model. Raises ModelError for what is missing, wrong or not native."""
    raw = read_raw(folder)
    family = FAMILIES.get(architecture(raw))
    if family is None or not is_native(raw):
        raise ModelError(f"the native decoder does not run {architecture(raw)} with the settings of its config.json.")
    hidden, heads = _size(raw, "hidden_size"), _size(raw, "num_attention_heads")
    head_dim = raw.get("head_dim", family.head_dim)
    if head_dim is None and hidden % heads:
        raise ModelError(f"config.json divides a hidden_size of {hidden} among {heads} heads, which leaves a rest.")
    vocab_size, rope = _size(raw, "vocab_size"), _rope(raw)
    attention_bias = "attention_bias" in family.switches and _flag(raw, "attention_bias")
    config = DecoderConfig(
        hidden_size=hidden,
        intermediate_size=_size(raw, "intermediate_size"),
        num_layers=_size(raw, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=_size({"num_key_value_heads": family.kv_heads, **raw}, "num_key_value_heads", heads),
        head_dim=_size({"head_dim": head_dim}, "head_dim", hidden // heads),
        rms_norm_eps=_number(raw.get("rms_norm_eps", 1e-6), "rms_norm_eps"),
        vocab_size=vocab_size,
        max_position_embeddings=_size(raw, "max_position_embeddings", family.positions),
        tie_word_embeddings=_flag(raw, "tie_word_embeddings"),
        rope_theta=_number(rope.get("rope_theta", raw.get("rope_theta", 10000.0)), "rope_theta"),
        rope_scaling=rope if _rope_kind(rope) != "default" else {},
        eos_token_ids=end_ids(folder, vocab_size),
        qkv_bias=family.qkv_bias or attention_bias,
        out_bias=attention_bias,
        mlp_bias="mlp_bias" in family.switches and _flag(raw, "mlp_bias"),
        qk_norm=family.qk_norm,
        sliding_window=_window(raw, family),
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
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} can't be read: {error}.") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object.")
    return value


def _size(raw: dict[str, Any], name: str, default: int | None = None) -> int:
    value = raw.get(name)
    value = default if value is None else value
    if type(value) is not int or not 1 <= value <= MAX_SIZE:
        raise ModelError(f"config.json says {name} is {value!r}; it must be a whole number from 1 to {MAX_SIZE}.")
    return value


def _number(value: Any, name: str) -> float:
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise ModelError(f"config.json says {name} is {value!r}; it must be a positive number.")
    return float(value)


def _flag(raw: dict[str, Any], name: str) -> bool:
    value = raw.get(name)
    if not isinstance(value, bool | None):
        raise ModelError(f"config.json says {name} is {value!r}; it must be true or false.")
    return bool(value)


def _rope(raw: dict[str, Any]) -> dict[str, Any]:
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ModelError(f"config.json says rope_parameters is {rope!r}; it must be an object.")
    return rope


def _rope_kind(rope: dict[str, Any]) -> Any:
    return rope.get("rope_type", rope.get("type", "default"))


def _window(raw: dict[str, Any], family: Family) -> int | None:
    """The sliding window of any layer that has one. Qwen's has two switches, and counts for the layers behind one."""
    if family.window is None:
        layers = _size(raw, "num_hidden_layers")
        kinds = raw.get("layer_types")
        slides = isinstance(kinds, list) and "sliding_attention" in kinds
        if kinds is None:
            slides = _flag(raw, "use_sliding_window") and layers > raw.get("max_window_layers", 28)
        if not slides:
            return None
    window = raw.get("sliding_window", 4096)
    return None if window is None else _size(raw, "sliding_window", 4096)
