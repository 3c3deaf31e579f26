"""A lean decoder of the Llama family: RMS norm, rotary positions, grouped-query attention, SwiGLU.

The family: Llama, Mistral, Qwen2 (biases of q, k and v) and Qwen3 (q and k normed head by head). What a model does not
have costs it nothing.

Knows: the order of operations and which tensor feeds which. Must not know: how an operation is computed (kernels.ops),
why a token row is in the batch. Everything hot goes through kernels.ops; there is no per-request work here. Where the
device has it, all layers but the last run in one call (`ops.run_stack`).

Precision: weights, matrix products and the KV cache are in the model's dtype; the residual stream, the norms, softmax
and rotation are float32, and so are the best logits (see head.py). In bfloat16 this halves the distance from the
float32 model's logits that a bfloat16 residual and bfloat16 logits have, as in transformers (0.045 against 0.088 nats,
root mean square over the gaps between the five best tokens of SmolLM2-135M).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from inference.execution.batch import Batch
from inference.execution.cache import KVCache
from inference.execution.device_batch import DeviceBatch, Placer
from inference.execution.models.decoder_config import DecoderConfig
from inference.execution.models.head import Head
from inference.execution.models.rope import rope_tables
from inference.execution.models.weights import WeightFolder
from kernels import ops


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear layer: its weight packed for ops.linear, and its bias [out] where it has one."""

    weight: Any
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = ops.linear(x, self.weight)
        return y if self.bias is None else y.add_(self.bias)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights. qkv rows: query heads, key heads, value heads; gate_up: gate, up.

    query_norm, key_norm [head_dim]: Qwen3's, else None.
    """

    attention_norm: torch.Tensor
    qkv: Linear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class LlamaModel:
    """The decoder. Answers to `models.protocol.DeviceModel`."""

    def __init__(
        self, config: DecoderConfig, weights: WeightFolder, dtype: torch.dtype, device: torch.device, max_model_len: int
    ) -> None:
        self.config = config
        self.dtype, self.device = dtype, device
        self.vocab_size = config.vocab_size
        self.max_model_len = max_model_len
        self.eos_token_ids = config.eos_token_ids
        self._placer = Placer(device)
        self._scale = config.head_dim**-0.5
        self._heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        shape = ops.StackShape(
            config.hidden_size,
            config.intermediate_size,
            *self._heads[:2],
            config.head_dim,
            self._scale,
            config.rms_norm_eps,
        )
        # All layers but the last, of which often only some rows are wanted.
        stacked = config.num_layers - 1 if ops.can_stack(shape, dtype, device) else 0
        packed = (_weights(config, weights, i, with_four_bits=True) for i in range(stacked))
        self._stack = ops.pack_stack(shape, packed) if stacked else None
        self._stacked = stacked
        self._layers = [_layer(config, weights, i) for i in range(stacked, config.num_layers)]
        self._final_norm = weights.take("model.norm.weight", config.hidden_size).float()
        self._embedding = weights.take("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        shape = (config.vocab_size, config.hidden_size)
        self._head = Head(self._embedding if config.tie_word_embeddings else weights.take("lm_head.weight", *shape))
        self._cos, self._sin = (table.to(device) for table in rope_tables(config, max_model_len))

    def new_cache(self, num_blocks: int, block_size: int) -> KVCache:
        c = self.config
        return KVCache.new(c.num_layers, num_blocks, block_size, c.num_kv_heads, c.head_dim, self.dtype, self.device)

    def kv_bytes_per_block(self, block_size: int) -> int:
        c = self.config
        return 2 * c.num_layers * c.num_kv_heads * c.head_dim * block_size * self.dtype.itemsize

    def forward(self, batch: Batch, cache: KVCache) -> torch.Tensor:
        """Logits float32 [S, vocab_size] of batch.logits_rows; writes the KV of all T rows."""
        return self.compute(self._placer.place(batch), cache)

    def compute(self, batch: DeviceBatch, cache: KVCache) -> torch.Tensor:
        """`forward` of a batch that is on the device. Launches only: it reads nothing back.

        The last layer's keys and values are written for all rows, the rest of it is computed for the wanted rows' sake
        only: everything after its attention runs over S rows, not T.
        """
        inputs = self._inputs(batch)
        last = len(self._layers) - 1
        caches = cache.layers[self._stacked :]
        rows = None if batch.wants_all else batch.logits_rows
        residual = torch.nn.functional.embedding(batch.token_ids, self._embedding).float()
        if self._stack is not None:
            ops.run_stack(self._stack, residual, cache.layers[: self._stacked], inputs)
        x = self._add_norm(None, residual, self._layers[0].attention_norm)
        for i, (layer, (key_cache, value_cache)) in enumerate(zip(self._layers, caches, strict=True)):
            query, key, value = self._qkv(layer, x)
            ops.rotary_write_kv(query, key, value, inputs.cos, inputs.sin, key_cache, value_cache, inputs.slots)
            if i == last and rows is not None and not len(rows):
                break
            x = self._attend(query, key_cache, value_cache, inputs)
            if i == last and rows is not None:
                x, residual = x[rows], residual[rows]
            x = self._add_norm(layer.out(x), residual, layer.mlp_norm)
            x = layer.down(ops.silu_mul(layer.gate_up(x)))
            x = self._add_norm(x, residual, self._final_norm if i == last else self._layers[i + 1].attention_norm)
        else:
            return self._head(x)
        return torch.empty(0, self.vocab_size, device=self.device)  # a chunk of prefill that wants no logits

    def _inputs(self, batch: DeviceBatch) -> ops.PagedInputs:
        return ops.PagedInputs(
            self._cos[batch.positions],
            self._sin[batch.positions],
            batch.slots,
            batch.block_tables,
            batch.query_starts,
            batch.context_lens,
            batch.max_query_len,
            batch.max_context_len,
        )

    def _qkv(self, layer: Layer, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query [T, H, D], key and value [T, KH, D], not rotated yet; rows may be slices of one tensor."""
        qkv = layer.qkv(x).view(len(x), -1, self.config.head_dim)
        query, key, value = qkv.split_with_sizes(self._heads, 1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = self._norm_heads(query, layer.query_norm), self._norm_heads(key, layer.key_norm)
        return query, key, value

    def _norm_heads(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Norm of each head of x [T, heads, D] on its own."""
        return ops.rms_norm(x.reshape(-1, x.shape[2]), weight, self.config.rms_norm_eps).view(x.shape)

    def _add_norm(self, x: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Add x to the residual stream, in place, and give the norm of the sum."""
        return ops.add_norm(x, residual, weight, self.config.rms_norm_eps, self.dtype)

    def _attend(
        self, query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, inputs: ops.PagedInputs
    ) -> torch.Tensor:
        attended = ops.paged_attention(
            query,
            key_cache,
            value_cache,
            inputs.block_tables,
            inputs.query_starts,
            inputs.context_lens,
            self._scale,
            inputs.max_query_len,
            inputs.max_context_len,
        )
        return attended.view(len(query), -1)


def _weights(
    config: DecoderConfig, weights: WeightFolder, index: int, with_four_bits: bool = False
) -> ops.LayerWeights:
    """What every layer has, as it is in the folder."""
    hidden, inner, prefix = config.hidden_size, config.intermediate_size, f"model.layers.{index}."
    gate_up = ("mlp.gate_proj", inner), ("mlp.up_proj", inner)
    query = config.num_heads * config.head_dim

    def stacked(*parts: tuple[str, int]) -> torch.Tensor:
        """Several weights one above the other: each by its name and its rows."""
        return torch.cat([weights.take(f"{prefix}{name}.weight", rows, hidden) for name, rows in parts])

    def four_bits(columns: int, *parts: tuple[str, int]) -> ops.FourBits | None:
        found = [weights.take_four_bits(f"{prefix}{name}.weight", rows, columns) for name, rows in parts]
        there = [one for one in found if one is not None]
        return ops.FourBits(*map(torch.cat, zip(*there, strict=True))) if len(there) == len(parts) else None

    def biases(biased: bool, *parts: tuple[str, int]) -> torch.Tensor | None:
        return torch.cat([weights.take(f"{prefix}{name}.bias", rows) for name, rows in parts]) if biased else None

    def head_norm(name: str) -> torch.Tensor | None:
        return weights.take(f"{prefix}self_attn.{name}.weight", config.head_dim) if config.qk_norm else None

    return ops.LayerWeights(
        attention_norm=weights.take(f"{prefix}input_layernorm.weight", hidden).float(),
        qkv=stacked(*_qkv_parts(config)),
        out=weights.take(f"{prefix}self_attn.o_proj.weight", hidden, query),
        mlp_norm=weights.take(f"{prefix}post_attention_layernorm.weight", hidden).float(),
        gate_up=stacked(*gate_up),
        down=weights.take(f"{prefix}mlp.down_proj.weight", hidden, inner),
        four_bits=(
            four_bits(hidden, *_qkv_parts(config)),
            four_bits(query, ("self_attn.o_proj", hidden)),
            four_bits(hidden, *gate_up),
            four_bits(inner, ("mlp.down_proj", hidden)),
        )
        if with_four_bits
        else (None,) * 4,
        biases=(
            biases(config.qkv_bias, *_qkv_parts(config)),
            biases(config.out_bias, ("self_attn.o_proj", hidden)),
            biases(config.mlp_bias, *gate_up),
            biases(config.mlp_bias, ("mlp.down_proj", hidden)),
        ),
        query_norm=head_norm("q_norm"),
        key_norm=head_norm("k_norm"),
    )


def _qkv_parts(config: DecoderConfig) -> tuple[tuple[str, int], ...]:
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return ("self_attn.q_proj", query), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)


def _layer(config: DecoderConfig, weights: WeightFolder, index: int) -> Layer:
    taken = _weights(config, weights, index)
    matrices = (taken.qkv, taken.out, taken.gate_up, taken.down)
    qkv, out, gate_up, down = (
        Linear(ops.pack_linear(weight), bias) for weight, bias in zip(matrices, taken.biases, strict=True)
    )
    return Layer(taken.attention_norm, qkv, taken.query_norm, taken.key_norm, out, taken.mlp_norm, gate_up, down)
