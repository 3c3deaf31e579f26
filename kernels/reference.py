"""The specification: each operation in plain PyTorch, for any device, as plainly as it can be said.

Knows: what an operation means. Must not know: how to be fast. Every other backend is tested against this module.

KV layout of every backend, chosen so that decode vectorises over positions for scores and over dims for values:
    key_cache   [num_blocks, kv_heads, head_dim, block_size]
    value_cache [num_blocks, kv_heads, block_size, head_dim]
A slot is block * block_size + offset. Slots that no position occupies may hold anything, NaN included.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kernels.stack import LayerWeights, PagedInputs, StackShape

NUMERICAL_ERROR = -1  # of `sample_rows`: the row holds NaN or +inf, or -inf alone
UNDECIDED = -3  # of `sample_rows`, other than this one: two ids are as close as rounding
SPAN = 256  # ids that race together in `sample_rows`
SPANS, IDS = 0, 1  # who races: a word of the generator's counter


def write_kv(
    key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, slots: torch.Tensor
) -> None:
    """Write key and value [T, KH, D] of each token to its slot, int64 [T]; a negative slot is nowhere."""
    block_size = value_cache.shape[2]
    kept = slots >= 0
    blocks, offsets = slots[kept] // block_size, slots[kept] % block_size
    key_cache[blocks, :, :, offsets] = key[kept].to(key_cache.dtype)
    value_cache[blocks, :, offsets] = value[kept].to(value_cache.dtype)


def gather_kv(
    key_cache: torch.Tensor, value_cache: torch.Tensor, block_table: torch.Tensor, context_len: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of one sequence's positions 0..context_len, each [KH, context_len, D], in the cache's dtype."""
    _, kv_heads, block_size, head_dim = value_cache.shape
    blocks = block_table[: -(-context_len // block_size)].long()
    keys = key_cache[blocks].permute(1, 0, 3, 2).reshape(kv_heads, -1, head_dim)
    values = value_cache[blocks].transpose(0, 1).reshape(kv_heads, -1, head_dim)
    return keys[:, :context_len], values[:, :context_len]


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    max_query_len: int,
    max_context_len: int,
) -> torch.Tensor:
    """Causal attention of query [T, H, D] through block tables (PagedAttention, Kwon et al. 2023); gives [T, H, D].

    Query i of sequence r stands at position context_lens[r] - query_len[r] + i. Softmax and sums in float32.
    A sequence whose context is empty is padding: its rows are zeros.
    """
    group = query.shape[1] // value_cache.shape[1]
    out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    starts, lens = query_starts.tolist(), context_lens.tolist()
    for r, context_len in enumerate(lens):
        rows = slice(starts[r], starts[r + 1])
        query_len = rows.stop - rows.start
        if query_len == 0 or context_len == 0:
            continue
        keys, values = gather_kv(key_cache, value_cache, block_tables[r], context_len)
        keys = keys.float().repeat_interleave(group, dim=0)
        values = values.float().repeat_interleave(group, dim=0)
        scores = query[rows].float().transpose(0, 1) @ keys.transpose(1, 2) * scale
        position = torch.arange(context_len, device=query.device)
        visible = position <= position[context_len - query_len :, None]
        weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=-1)
        out[rows] = (weights @ values).transpose(0, 1).to(query.dtype)
    return out


def rotary(query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate query [T, H, D] and key [T, KH, D] in place by cos and sin, float32 [T, D / 2] (RoPE, Su et al. 2021).

    Rotate-half, the convention of Llama in transformers: dim i pairs with dim i + D / 2.
    """
    half = cos.shape[1]
    cos, sin = cos[:, None], sin[:, None]
    for x in (query, key):
        first, second = x[..., :half].float(), x[..., half:].float()
        rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
        x.copy_(rotated.to(x.dtype))


def rotary_write_kv(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """`rotary`, then `write_kv`. What becomes of key itself is open."""
    rotary(query, key, cos, sin)
    write_kv(key, value, key_cache, value_cache, slots)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """RMS norm of x [T, N] (Zhang and Sennrich 2019), or of x + residual, which is then given back as well.

    The normalised value is rounded to x's dtype before the weight is applied, as transformers does.
    """
    if residual is not None:
        x = x + residual
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    y = weight * scaled.to(x.dtype)
    return y if residual is None else (y, x)


def add_norm(
    x: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float, out_dtype: torch.dtype
) -> torch.Tensor:
    """Add x [T, N] to the residual stream, float32 [T, N], in place; give the RMS norm of the sum in out_dtype.

    All in float32 until the last rounding. Without x the norm alone.
    """
    if x is not None:
        residual += x
    scale = torch.rsqrt(residual.square().mean(-1, keepdim=True) + eps)
    return (weight * (residual * scale)).to(out_dtype)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """SiLU(gate) * up for gate_up [T, 2N] = gate | up; gives [T, N] (SwiGLU, Shazeer 2020)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def sample_rows(
    logits: torch.Tensor, temperatures: torch.Tensor, seeds: torch.Tensor, indices: torch.Tensor
) -> torch.Tensor:
    """An id for each row of logits, float32 [S, vocab]; NUMERICAL_ERROR where there is none. int64 [S].

    temperatures: float32 [S]; where one is 0 the largest logit is taken, the lowest id among equals. Else an
    exponential race: an id has the weight exp((logit - peak) / temperature) and a waiting time keyed by (seed, index,
    id), and the largest weight by wait wins. First spans of SPAN ids race with the sums of their weights, then the ids
    of the one that won.  seeds, indices: int64 [S], of the request and of the token in its answer.
    """
    ids = []
    for row, temperature, seed, index in zip(
        logits.cpu(), temperatures.tolist(), seeds.tolist(), indices.tolist(), strict=True
    ):
        peak = row.max()
        if not peak.isfinite():
            ids.append(NUMERICAL_ERROR)
        elif temperature == 0:
            ids.append(int((row == peak).nonzero()[0]))
        else:
            weights = torch.exp((row.double() - peak) / temperature)
            spans = torch.nn.functional.pad(weights, (0, -len(weights) % SPAN)).view(-1, SPAN)
            won = int((spans.sum(1) / waits(seed, index, SPANS, 0, len(spans))).argmax())
            ids.append(won * SPAN + int((spans[won] / waits(seed, index, IDS, won * SPAN, SPAN)).argmax()))
    return torch.tensor(ids, dtype=torch.int64, device=logits.device)


def waits(seed: int, index: int, kind: int, first: int, count: int) -> torch.Tensor:
    """Exponentially distributed float64 [count], for numbers first .. first + count - 1; first % 4 is 0.

    By Philox4x64-10 (Salmon et al. 2011), which counts before it gives.
    """
    generator = np.random.Philox(key=seed % 2**64, counter=[first // 4, kind, index, 0])
    bits = torch.from_numpy((generator.random_raw(count) >> np.uint64(12)).astype(np.float64))
    return -torch.log((bits + 0.5) * 2.0**-52)


def run_stack(
    shape: StackShape,
    layers: Sequence[LayerWeights],
    residual: torch.Tensor,
    caches: Sequence[tuple[torch.Tensor, torch.Tensor]],
    inputs: PagedInputs,
) -> None:
    """Decoder layers over the residual stream [T, hidden], float32, in place; writes the KV of all T tokens.

    What goes into a product is rounded to the weights' dtype, and so are query, key, value and the attended; sums,
    norms, rotation, softmax and the gate are float32.
    """
    dtype, dim = layers[0].qkv.dtype, shape.head_dim
    heads = (shape.heads, shape.kv_heads, shape.kv_heads)

    def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        sums = x.to(dtype).float() @ weight.float().T
        return sums if bias is None else sums + bias.float()

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + shape.eps) * weight

    for layer, (key_cache, value_cache) in zip(layers, caches, strict=True):
        qkv_bias, out_bias, gate_up_bias, down_bias = layer.biases
        qkv = product(norm(residual, layer.attention_norm), layer.qkv, qkv_bias).to(dtype)
        query, key, value = qkv.view(len(residual), -1, dim).split_with_sizes(heads, 1)
        if layer.query_norm is not None:
            query.copy_(norm(query.float(), layer.query_norm))
        if layer.key_norm is not None:
            key.copy_(norm(key.float(), layer.key_norm))
        rotary(query, key, inputs.cos, inputs.sin)
        write_kv(key, value, key_cache, value_cache, inputs.slots)
        attended = paged_attention(query, key_cache, value_cache, *inputs[3:6], shape.scale, *inputs[6:])
        residual += product(attended.flatten(1), layer.out, out_bias)
        gate, up = product(norm(residual, layer.mlp_norm), layer.gate_up, gate_up_bias).chunk(2, 1)
        residual += product(torch.nn.functional.silu(gate) * up, layer.down, down_bias)
