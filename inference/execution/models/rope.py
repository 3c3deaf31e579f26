"""Rotary position tables (RoPE, Su et al. 2021), plain, linear and Llama 3's scaling.

Knows: frequencies. Must not know: layers, caches. The rotation itself is `ops.rotary`.
"""

from __future__ import annotations

import math

import torch

from inference.execution.models.decoder_config import DecoderConfig
from inference.execution.models.errors import ModelError


def rope_tables(config: DecoderConfig, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, float32 [positions, head_dim / 2]. Raises ModelError for a scaling that is not known."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    try:
        if kind == "linear":
            frequencies = frequencies / float(scaling["factor"])
        elif kind == "llama3":
            frequencies = _llama3(frequencies, config)
        elif kind != "default":
            raise ModelError(f"rotary scaling of type {kind!r} is not supported; there are: default, linear, llama3.")
    except (KeyError, TypeError) as error:
        raise ModelError(f"config.json does not say enough of its rotary scaling {kind!r}: {error}.") from error
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    return angles.cos(), angles.sin()


def _llama3(frequencies: torch.Tensor, config: DecoderConfig) -> torch.Tensor:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended (Llama 3.1's release)."""
    scaling = config.rope_scaling
    factor, low, high = (float(scaling[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    original = float(scaling["original_max_position_embeddings"])
    wavelengths = 2 * math.pi / frequencies
    smooth = ((original / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - smooth) * frequencies / factor + smooth * frequencies
