"""What a model costs at least: multiplications a token, bytes a step; and so the limits that no engine can pass here.

Knows: the loaded model's own sizes and weights. Must not know: how fast anything was.
Only the native decoder can be counted so; another model has no limits in the tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from bench.burst import Request
from bench.machine import Peaks
from inference.execution.models.decoder_config import DecoderConfig
from inference.execution.models.llama import LlamaModel

FOUR_BIT_ROWS = 8  # up to so many rows the four-bit product serves (kernels/cpu/gemm_q4.hpp)
FOUR_BIT_BYTES = 20 / 32  # a weight: 16 bytes of bits, a scale and a minimum of 2 bytes for each 32


@dataclass(frozen=True, slots=True)
class Costs:
    """layer_weights: of all layers' matrices.  head_weights: of the last one.  kv_bytes: a position, all layers.
    four_bit_weights: those of layer_weights that are kept in four bits as well, for few rows."""

    layer_weights: int
    head_weights: int
    kv_bytes: int
    attention_flop: int  # a token and a position that it attends to
    dtype: torch.dtype
    four_bit_weights: int = 0

    @property
    def prompt_flop(self) -> int:
        return 2 * self.layer_weights

    @property
    def output_flop(self) -> int:
        return 2 * (self.layer_weights + self.head_weights)

    def layer_bytes(self, rows: int, four_bits: bool = True) -> float:
        """Weights that a step of `rows` token rows reads in the layers, each once."""
        few = self.four_bit_weights if four_bits and rows <= FOUR_BIT_ROWS else 0
        return few * FOUR_BIT_BYTES + (self.layer_weights - few) * self.dtype.itemsize

    @property
    def head_bytes(self) -> int:
        return self.head_weights * self.dtype.itemsize

    def step_bytes(self, rows: int = 1, context: int = 0, four_bits: bool = True) -> float:
        """Bytes that a decode step reads: all weights once, and each row's context."""
        return self.layer_bytes(rows, four_bits) + self.head_bytes + rows * context * self.kv_bytes


def shapes_of(config: DecoderConfig) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) of a layer's four matrices, as they are fused, and of the head."""
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "qkv": (query + 2 * kv, config.hidden_size),
        "out": (config.hidden_size, query),
        "gate_up": (2 * config.intermediate_size, config.hidden_size),
        "down": (config.hidden_size, config.intermediate_size),
        "head": (config.vocab_size, config.hidden_size),
    }


def costs_of(model: Any) -> Costs | None:
    """None for a model that is not the native decoder."""
    if not isinstance(model, LlamaModel):
        return None
    config, shapes = model.config, shapes_of(model.config)
    sizes = {name: outputs * inputs for name, (outputs, inputs) in shapes.items()}
    head = sizes.pop("head")
    kv_values = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    attention = 4 * config.num_layers * config.num_heads * config.head_dim
    layers = config.num_layers * sum(sizes.values())
    return Costs(layers, head, kv_values * model.dtype.itemsize, attention, model.dtype, _in_four_bits(model, sizes))


def _in_four_bits(model: LlamaModel, sizes: dict[str, int]) -> int:
    """Weights of which the packed layers hold a form in four bits."""
    layers = getattr(model._stack, "_layers", ())
    return sum(size for layer in layers for name, size in sizes.items() if getattr(layer, f"{name}_q4", None))


def burst_limit(costs: Costs, peaks: Peaks, requests: Iterable[Request]) -> float:
    """Output tokens/s of a burst if every product ran at the matrix peak and nothing else took time."""
    requests = list(requests)
    prompt, output = sum(len(ids) for ids, _ in requests), sum(wanted for _, wanted in requests)
    flop = prompt * costs.prompt_flop + output * costs.output_flop
    return output * peaks.of(costs.dtype) / flop


def stream_limit(costs: Costs, peaks: Peaks, four_bits: bool = True) -> float:
    """Tokens/s of one stream if every step read the weights once at the memory's bandwidth, and nothing else."""
    return peaks.read / costs.step_bytes(four_bits=four_bits)
