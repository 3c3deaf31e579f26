"""CPU backend in C++: hands pointers, sizes and strides to the library that `build` made.

Knows: the library's C interface. Must not know: shapes' meaning beyond it; `ops` has checked them.
Inputs may be slices of a fused projection: rows strided, a row's elements contiguous.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int, c_int32, c_int64, c_void_p
from typing import Any

import torch

from kernels.checks import check_cache_layout, check_rotary_layout, with_contiguous_rows
from kernels.cpu.build import load_library
from kernels.reference import sample_rows as sample_rows

DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1}
WRONG = {
    1: "query starts, context lengths and block tables do not fit together",
    2: "a block or slot is not in the cache, which has {} blocks",
}


class Matrix(ctypes.Structure):
    """The struct of the same name in decoder.cpp. Its pointers' owner must live as long as it is used."""

    _fields_ = [
        *((name, c_void_p) for name in ("weight", "four_bits", "bias")),
        ("weight_dtype", c_int64),
    ]


class AttentionArgs(ctypes.Structure):
    """The struct of the same name in paged_attention.cpp."""

    _fields_ = [
        *((name, c_void_p) for name in ("query", "key_cache", "value_cache", "out")),
        *((name, c_void_p) for name in ("block_tables", "query_starts", "context_lens")),
        *((name, c_int64) for name in ("query_stride", "table_stride", "num_blocks")),
        *((name, c_int32) for name in ("tokens", "sequences", "heads", "kv_heads", "head_dim", "block_size")),
        *((name, c_int32) for name in ("table_width", "query_dtype", "cache_dtype", "threads")),
        ("scale", c_float),
    ]


_library: Any = load_library()  # a ctypes.CDLL or None
available = _library is not None
multiplies_bfloat16 = available and bool(_library.batchscope_multiplies_bfloat16())
BLOCK = _library.batchscope_block() if available else 32  # outputs of a block of a packed weight


def _declare(name: str, *types: type) -> None:
    function = getattr(_library, name)
    function.argtypes, function.restype = types, c_int


if _library is not None:
    _declare("batchscope_paged_attention", ctypes.POINTER(AttentionArgs))
    _declare("batchscope_write_kv", *[c_void_p] * 5, *[c_int64] * 7, *[c_int] * 3)
    _declare("batchscope_rotary", *[c_void_p] * 4, *[c_int64] * 6, *[c_int] * 2)
    _declare("batchscope_rms_norm", *[c_void_p] * 5, *[c_int64] * 4, c_float, *[c_int] * 2)
    _declare("batchscope_add_norm", *[c_void_p] * 4, *[c_int64] * 4, c_float, *[c_int] * 2)
    _declare("batchscope_silu_mul", *[c_void_p] * 2, *[c_int64] * 3, *[c_int] * 2)
    _declare("batchscope_linear", *[c_void_p] * 3, *[c_int64] * 4, *[c_int] * 3)
    _declare("batchscope_decoder_layers", c_void_p)


def write_kv(
    key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, slots: torch.Tensor
) -> None:
    key, value, slots = with_contiguous_rows(key), with_contiguous_rows(value), slots.contiguous()
    blocks, heads, block_size, dim = value_cache.shape
    check_cache_layout(key_cache, value_cache)
    code = _library.batchscope_write_kv(
        key.data_ptr(), value.data_ptr(), key_cache.data_ptr(), value_cache.data_ptr(), slots.data_ptr(),
        slots.numel(), heads, dim, blocks, block_size, key.stride(0), value.stride(0),
        _code(key), _code(key_cache), torch.get_num_threads(),
    )  # fmt: skip
    check(code, blocks)


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
    query = with_contiguous_rows(query)
    if block_tables.stride(1) != 1:
        block_tables = block_tables.contiguous()
    query_starts, context_lens = query_starts.contiguous(), context_lens.contiguous()
    check_cache_layout(key_cache, value_cache)
    out = torch.empty(query.shape, dtype=query.dtype)
    args = attention_args(query, key_cache, value_cache, out, block_tables, query_starts, context_lens, scale)
    check(_library.batchscope_paged_attention(args), key_cache.shape[0])
    return out


def attention_args(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    out: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
) -> AttentionArgs:
    """The struct for one call. All tensors' rows must be contiguous, and they must live until the call is over."""
    tokens, heads, dim = query.shape
    blocks, kv_heads, block_size, _ = value_cache.shape
    sequences, width = block_tables.shape
    return AttentionArgs(
        query.data_ptr(), key_cache.data_ptr(), value_cache.data_ptr(), out.data_ptr(),
        block_tables.data_ptr(), query_starts.data_ptr(), context_lens.data_ptr(),
        query.stride(0), block_tables.stride(0), blocks, tokens, sequences, heads, kv_heads, dim, block_size, width,
        _code(query), _code(key_cache), torch.get_num_threads(), scale,
    )  # fmt: skip


def decoder_layers(args: ctypes.Structure) -> int:
    """Run decoder.cpp's DecoderArgs; the code for `check`."""
    return _library.batchscope_decoder_layers(ctypes.addressof(args))


def linear(x: torch.Tensor, weight: Matrix, outputs: int, out_dtype: torch.dtype) -> torch.Tensor:
    """x [T, in] times a packed weight: [T, outputs] in float32, in which it was summed up, or in x's dtype."""
    x = with_contiguous_rows(x)
    y = torch.empty((x.shape[0], outputs), dtype=out_dtype)
    _library.batchscope_linear(
        x.data_ptr(), ctypes.addressof(weight), y.data_ptr(), x.shape[0], x.shape[1], outputs, x.stride(0),
        _code(x), _code(y), torch.get_num_threads(),
    )  # fmt: skip
    return y


def check(code: int, blocks: int) -> None:
    """Raises ValueError where the library found numbers that don't fit."""
    if code:
        raise ValueError(WRONG[code].format(blocks))


def rotary(query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    check_rotary_layout(query, key)
    cos, sin = cos.contiguous(), sin.contiguous()
    _library.batchscope_rotary(
        query.data_ptr(), key.data_ptr(), cos.data_ptr(), sin.data_ptr(), query.shape[0], query.shape[1], key.shape[1],
        cos.shape[1], query.stride(0), key.stride(0), _code(query), torch.get_num_threads(),
    )  # fmt: skip


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
    rotary(query, key, cos, sin)
    write_kv(key, value, key_cache, value_cache, slots)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    x, weight = with_contiguous_rows(x), weight.contiguous()
    y = torch.empty(x.shape, dtype=x.dtype)
    threads, (tokens, width) = torch.get_num_threads(), x.shape
    if residual is None:
        _library.batchscope_rms_norm(
            x.data_ptr(), None, weight.data_ptr(), y.data_ptr(), None,
            tokens, width, x.stride(0), 0, eps, _code(x), threads,
        )  # fmt: skip
        return y
    residual = with_contiguous_rows(residual)
    total = torch.empty(x.shape, dtype=x.dtype)
    _library.batchscope_rms_norm(
        x.data_ptr(), residual.data_ptr(), weight.data_ptr(), y.data_ptr(), total.data_ptr(),
        tokens, width, x.stride(0), residual.stride(0), eps, _code(x), threads,
    )  # fmt: skip
    return y, total


def add_norm(
    x: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float, out_dtype: torch.dtype
) -> torch.Tensor:
    x = None if x is None else with_contiguous_rows(x)
    weight, y = weight.contiguous(), torch.empty(residual.shape, dtype=out_dtype)
    _library.batchscope_add_norm(
        None if x is None else x.data_ptr(), residual.data_ptr(), weight.data_ptr(), y.data_ptr(), *residual.shape,
        0 if x is None else x.stride(0), residual.stride(0), eps, _code(y), torch.get_num_threads(),
    )  # fmt: skip
    return y


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    gate_up = with_contiguous_rows(gate_up)
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    y = torch.empty((tokens, width), dtype=gate_up.dtype)
    _library.batchscope_silu_mul(
        gate_up.data_ptr(), y.data_ptr(), tokens, width, gate_up.stride(0), _code(gate_up), torch.get_num_threads()
    )
    return y


def _code(x: torch.Tensor) -> int:
    try:
        return DTYPE_CODES[x.dtype]
    except KeyError:
        raise ValueError(f"CPU kernels take float32 and bfloat16, not {x.dtype}") from None
