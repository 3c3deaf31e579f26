"""Small random decoders of transformers, of many architectures, in folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

VOCAB = 259
LAYERS = 3
# What each architecture has of these is set. initializer_range: so that logits differ by more than rounding.
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rotary_dim": 8,
    "ffn_dim": 96,
    "word_embed_proj_dim": 64,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
}


def tiny_config(kind: str, **overrides: Any) -> Any:
    config_class = CONFIG_MAPPING[kind]
    names = set(vars(config_class())) | set(config_class.attribute_map)
    return config_class(**{name: value for name, value in SMALL.items() if name in names} | overrides)


def save_tiny(folder: Path, kind: str, **overrides: Any) -> None:
    """A random model in float32, its weights in safetensors."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(tiny_config(kind, **overrides)).float().save_pretrained(folder)


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
