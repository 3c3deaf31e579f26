"""Checks of the arguments of an operation: shapes, dtypes and layouts, since values would cost a pass over memory.

Knows: what fits together. Must not know: backends. Raises ValueError with the shapes that were given.
`ops` checks shapes and dtypes for every backend; a backend that hands out pointers checks the layouts it needs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.stack import PagedInputs, StackShape

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check_cache(key_cache: torch.Tensor, value_cache: torch.Tensor) -> None:
    if key_cache.dim() != 4 or value_cache.dim() != 4:
        raise ValueError(f"a KV cache has 4 dims, not {_shape(key_cache)} and {_shape(value_cache)}")
    blocks, heads, block_size, head_dim = value_cache.shape
    if key_cache.shape != (blocks, heads, head_dim, block_size) or key_cache.dtype != value_cache.dtype:
        raise ValueError(
            f"key cache {_shape(key_cache)} {key_cache.dtype} does not fit value cache {_shape(value_cache)} "
            f"{value_cache.dtype}: [blocks, heads, dim, block size] and [blocks, heads, block size, dim] are wanted"
        )


def check_write_kv(
    key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, slots: torch.Tensor
) -> None:
    check_cache(key_cache, value_cache)
    _, heads, _, head_dim = value_cache.shape
    if key.shape != (slots.numel(), heads, head_dim) or key.shape != value.shape or key.dtype != value.dtype:
        raise ValueError(
            f"key {_shape(key)} {key.dtype} and value {_shape(value)} {value.dtype} do not fit {slots.numel()} slots "
            f"of a value cache {_shape(value_cache)}"
        )
    if slots.dtype != torch.int64:
        raise ValueError(f"slots must be int64, not {slots.dtype}")


def check_paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
) -> None:
    check_cache(key_cache, value_cache)
    _, kv_heads, _, head_dim = value_cache.shape
    if query.dim() != 3 or query.shape[2] != head_dim or query.shape[1] % kv_heads:
        raise ValueError(f"query {_shape(query)} does not fit a value cache {_shape(value_cache)}")
    check_tables(block_tables, query_starts, context_lens)


def check_tables(block_tables: torch.Tensor, query_starts: torch.Tensor, context_lens: torch.Tensor) -> None:
    rows = context_lens.numel()
    if block_tables.dim() != 2 or block_tables.shape[0] != rows or query_starts.numel() != rows + 1:
        raise ValueError(
            f"block tables {_shape(block_tables)}, query starts {_shape(query_starts)} and context lengths "
            f"{_shape(context_lens)} do not agree on the number of sequences"
        )
    if not block_tables.dtype == query_starts.dtype == context_lens.dtype == torch.int32:
        raise ValueError(
            f"block tables, query starts and context lengths must be int32, not {block_tables.dtype}, "
            f"{query_starts.dtype} and {context_lens.dtype}"
        )


def check_rotary(query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    tokens, _, head_dim = query.shape
    if key.dim() != 3 or key.shape[0] != tokens or key.shape[2] != head_dim or query.dtype != key.dtype:
        raise ValueError(f"query {_shape(query)} {query.dtype} and key {_shape(key)} {key.dtype} do not go together")
    if head_dim % 2 or cos.shape != (tokens, head_dim // 2) or sin.shape != cos.shape:
        raise ValueError(f"cos {_shape(cos)} and sin {_shape(sin)} do not fit query {_shape(query)}")
    if cos.dtype != torch.float32 or sin.dtype != torch.float32:
        raise ValueError(f"cos and sin must be float32, not {cos.dtype} and {sin.dtype}")


def check_rotary_write(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    check_rotary(query, key, cos, sin)
    check_write_kv(key, value, key_cache, value_cache, slots)
    if query.shape[1] % key.shape[1]:
        raise ValueError(f"{query.shape[1]} query heads can't be shared out among {key.shape[1]} KV heads")


def check_rms_norm(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None) -> None:
    if x.dim() != 2 or weight.shape != x.shape[1:] or weight.dtype != x.dtype:
        raise ValueError(f"weight {_shape(weight)} {weight.dtype} does not fit x {_shape(x)} {x.dtype}")
    if residual is not None and (residual.shape != x.shape or residual.dtype != x.dtype):
        raise ValueError(f"residual {_shape(residual)} {residual.dtype} does not fit x {_shape(x)} {x.dtype}")


def check_add_norm(
    x: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, out_dtype: torch.dtype
) -> None:
    if residual.dim() != 2 or residual.dtype != torch.float32 or residual.stride(1) != 1:
        raise ValueError(
            f"the residual stream must be float32 [tokens, hidden] with contiguous rows, not {_shape(residual)} "
            f"{residual.dtype}"
        )
    if weight.shape != residual.shape[1:] or weight.dtype != torch.float32:
        raise ValueError(f"weight {_shape(weight)} {weight.dtype} does not fit a float32 residual {_shape(residual)}")
    if x is not None and (x.shape != residual.shape or x.dtype != out_dtype):
        raise ValueError(
            f"x {_shape(x)} {x.dtype} does not fit a residual {_shape(residual)} and a norm in {out_dtype}"
        )


def check_sample_rows(
    logits: torch.Tensor, temperatures: torch.Tensor, seeds: torch.Tensor, indices: torch.Tensor
) -> None:
    rows = len(logits)
    if logits.dim() != 2 or logits.dtype != torch.float32 or not logits.shape[1]:
        raise ValueError(f"logits must be float32 [rows, vocab], not {_shape(logits)} {logits.dtype}")
    if not temperatures.shape == seeds.shape == indices.shape == (rows,):
        raise ValueError(
            f"temperatures {_shape(temperatures)}, seeds {_shape(seeds)} and indices {_shape(indices)} do not fit "
            f"{rows} rows of logits"
        )
    if temperatures.dtype != torch.float32 or not seeds.dtype == indices.dtype == torch.int64:
        raise ValueError(
            f"temperatures must be float32, seeds and indices int64, not {temperatures.dtype}, {seeds.dtype} and "
            f"{indices.dtype}"
        )


def check_silu_mul(gate_up: torch.Tensor) -> None:
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"gate_up must be [tokens, 2 * width], not {_shape(gate_up)}")


def check_run_stack(
    residual: torch.Tensor,
    caches: Sequence[tuple[torch.Tensor, torch.Tensor]],
    inputs: PagedInputs,
    layers: int,
    shape: StackShape,
    dtype: torch.dtype,
) -> None:
    tokens = residual.shape[0]
    if residual.shape != (tokens, shape.hidden) or residual.dtype != torch.float32 or not residual.is_contiguous():
        raise ValueError(
            f"the residual stream must be contiguous float32 [tokens, {shape.hidden}], not {_shape(residual)} "
            f"{residual.dtype}"
        )
    if len(caches) != layers:
        raise ValueError(f"{layers} layers need as many caches, not {len(caches)}")
    blocks, _, block_size, _ = caches[0][1].shape
    wanted = (blocks, shape.kv_heads, block_size, shape.head_dim)
    for key_cache, value_cache in caches:
        check_cache(key_cache, value_cache)
        check_cache_layout(key_cache, value_cache)
        if value_cache.shape != wanted or value_cache.dtype != dtype:
            raise ValueError(
                f"a value cache {_shape(value_cache)} {value_cache.dtype} does not fit layers that want "
                f"{list(wanted)} {dtype}"
            )
    angles = (tokens, shape.head_dim // 2)
    if inputs.cos.shape != angles or inputs.sin.shape != angles or inputs.slots.numel() != tokens:
        raise ValueError(
            f"cos {_shape(inputs.cos)}, sin {_shape(inputs.sin)} and slots {_shape(inputs.slots)} do not fit {tokens} "
            f"tokens with heads of {shape.head_dim}"
        )
    if not inputs.cos.dtype == inputs.sin.dtype == torch.float32 or inputs.slots.dtype != torch.int64:
        raise ValueError(
            f"cos and sin must be float32 and slots int64, not {inputs.cos.dtype}, {inputs.sin.dtype} and "
            f"{inputs.slots.dtype}"
        )
    check_tables(inputs.block_tables, inputs.query_starts, inputs.context_lens)
    for tensor in (inputs.cos, inputs.sin, inputs.slots, inputs.query_starts, inputs.context_lens):
        if not tensor.is_contiguous():
            raise ValueError("cos, sin, slots, query starts and context lengths must be contiguous")
    if inputs.block_tables.stride(1) != 1:
        raise ValueError("rows of the block tables must be contiguous")


def with_contiguous_rows(x: torch.Tensor) -> torch.Tensor:
    """x itself where the elements of each row (the first dim) are contiguous, else a copy whose are."""
    return x if has_contiguous_rows(x) else x.contiguous()


def has_contiguous_rows(x: torch.Tensor) -> bool:
    """Whether rows may be strided (a slice of a fused projection) but are each contiguous; x is [T, N] or [T, H, D]."""
    stride = x.stride()
    return stride[-1] == 1 and (len(stride) == 2 or stride[1] == x.shape[2])


def check_cache_layout(key_cache: torch.Tensor, value_cache: torch.Tensor) -> None:
    if not (key_cache.is_contiguous() and value_cache.is_contiguous()):
        raise ValueError("a KV cache must be contiguous, as new_kv_cache makes it")


def check_rotary_layout(query: torch.Tensor, key: torch.Tensor) -> None:
    if not (has_contiguous_rows(query) and has_contiguous_rows(key)):
        raise ValueError(
            f"rotary works in place on contiguous rows, not on strides {list(query.stride())} and {list(key.stride())}"
        )


def _shape(x: torch.Tensor) -> list[int]:
    return list(x.shape)
