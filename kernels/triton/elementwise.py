"""The small operations in Triton: rotary, norms, the step to a residual, SiLU-mul. Each is one pass over its tensors.

Knows: rows and their strides. Must not know: caches, models.
Sums and products are in float32; where transformers rounds to the dtype in between, so do these.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.checks import (
    check_add_norm,
    check_rms_norm,
    check_rotary,
    check_rotary_layout,
    check_silu_mul,
    with_contiguous_rows,
)
from kernels.triton.launch import launch


@triton.jit
def rotate_heads(row_ptr, cos, sin, heads, HALF: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_HALF: tl.constexpr):
    head = tl.arange(0, BLOCK_H)[:, None]
    dim = tl.arange(0, BLOCK_HALF)[None, :]
    mask = (head < heads) & (dim < HALF)
    first_ptr = row_ptr + head * (2 * HALF) + dim
    first = tl.load(first_ptr, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(first_ptr + HALF, mask=mask, other=0.0).to(tl.float32)
    dtype = row_ptr.dtype.element_ty
    tl.store(first_ptr, (first * cos - second * sin).to(dtype), mask=mask)
    tl.store(first_ptr + HALF, (second * cos + first * sin).to(dtype), mask=mask)


@triton.jit
def rotary_kernel(
    query_ptr,  # [T, H, D], rows query_stride apart, changed in place
    key_ptr,  # [T, KH, D], rows key_stride apart, changed in place
    cos_ptr,  # float32 [T, D / 2]
    sin_ptr,  # float32 [T, D / 2]
    query_stride,
    key_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_KH: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    dim = tl.arange(0, BLOCK_HALF)[None, :]
    cos = tl.load(cos_ptr + token * HALF + dim, mask=dim < HALF, other=0.0)
    sin = tl.load(sin_ptr + token * HALF + dim, mask=dim < HALF, other=0.0)
    rotate_heads(query_ptr + token * query_stride, cos, sin, HEADS, HALF, BLOCK_H, BLOCK_HALF)
    rotate_heads(key_ptr + token * key_stride, cos, sin, KV_HEADS, HALF, BLOCK_KH, BLOCK_HALF)


@triton.jit
def rms_norm_kernel(
    x_ptr,  # [T, N], rows x_stride apart
    residual_ptr,  # [T, N], rows residual_stride apart; read only with HAS_RESIDUAL
    weight_ptr,  # [N]
    y_ptr,  # [T, N]
    total_ptr,  # [T, N], x + residual; written only with HAS_RESIDUAL
    x_stride,
    residual_stride,
    eps,
    WIDTH: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < WIDTH
    dtype = y_ptr.dtype.element_ty
    x = tl.load(x_ptr + token * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        x += tl.load(residual_ptr + token * residual_stride + column, mask=mask, other=0.0).to(tl.float32)
        tl.store(total_ptr + token * WIDTH + column, x.to(dtype), mask=mask)
        x = x.to(dtype).to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.sum(x * x, 0) / WIDTH + eps)
    weight = tl.load(weight_ptr + column, mask=mask, other=0.0).to(tl.float32)
    y = (x * scale).to(dtype).to(tl.float32) * weight
    tl.store(y_ptr + token * WIDTH + column, y.to(dtype), mask=mask)


@triton.jit
def add_norm_kernel(
    x_ptr,  # [T, N], rows x_stride apart; read only with HAS_X
    residual_ptr,  # float32 [T, N], rows residual_stride apart; changed in place with HAS_X
    weight_ptr,  # float32 [N]
    y_ptr,  # [T, N]
    x_stride,
    residual_stride,
    eps,
    WIDTH: tl.constexpr,
    HAS_X: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < WIDTH
    row_ptr = residual_ptr + token * residual_stride + column
    total = tl.load(row_ptr, mask=mask, other=0.0)
    if HAS_X:
        total += tl.load(x_ptr + token * x_stride + column, mask=mask, other=0.0).to(tl.float32)
        tl.store(row_ptr, total, mask=mask)
    scale = 1.0 / tl.sqrt_rn(tl.sum(total * total, 0) / WIDTH + eps)
    weight = tl.load(weight_ptr + column, mask=mask, other=0.0)
    y = total * scale * weight
    tl.store(y_ptr + token * WIDTH + column, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def silu_mul_kernel(
    gate_up_ptr,  # [T, 2N] = gate | up, rows stride apart
    y_ptr,  # [T, N]
    stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < WIDTH
    dtype = y_ptr.dtype.element_ty
    gate = tl.load(gate_up_ptr + token * stride + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + token * stride + WIDTH + column, mask=mask, other=0.0).to(tl.float32)
    small = tl.exp(-tl.abs(gate))  # never overflows
    silu = (gate * tl.where(gate < 0, small, 1.0) / (1.0 + small)).to(dtype).to(tl.float32)
    tl.store(y_ptr + token * WIDTH + column, (silu * up).to(dtype), mask=mask)


def rotary(query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """As ops.rotary says."""
    check_rotary(query, key, cos, sin)
    check_rotary_layout(query, key)
    tokens, heads, kv_heads, half = query.shape[0], query.shape[1], key.shape[1], cos.shape[1]
    if tokens == 0:
        return
    launch(
        rotary_kernel, (tokens,),
        query, key, cos.contiguous(), sin.contiguous(), query.stride(0), key.stride(0),
        HEADS=heads, KV_HEADS=kv_heads, HALF=half, BLOCK_H=triton.next_power_of_2(heads),
        BLOCK_KH=triton.next_power_of_2(kv_heads), BLOCK_HALF=triton.next_power_of_2(half), num_warps=4,
    )  # fmt: skip


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """As ops.rms_norm says."""
    check_rms_norm(x, weight, residual)
    x, weight = with_contiguous_rows(x), weight.contiguous()
    other = x if residual is None else with_contiguous_rows(residual)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = y if residual is None else torch.empty_like(y)
    tokens, width = x.shape
    if tokens:
        block = triton.next_power_of_2(width)
        launch(
            rms_norm_kernel, (tokens,),
            x, other, weight, y, total, x.stride(0), other.stride(0), eps, WIDTH=width,
            HAS_RESIDUAL=residual is not None, BLOCK=block, num_warps=warps_of(block),
        )  # fmt: skip
    return y if residual is None else (y, total)


def warps_of(block: int) -> int:
    """Warps that share a row of a norm: 16 numbers a thread, as long as that makes no more than 16 warps."""
    return min(16, max(1, block // 512))


def add_norm(
    x: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float, out_dtype: torch.dtype
) -> torch.Tensor:
    """As ops.add_norm says."""
    check_add_norm(x, residual, weight, out_dtype)
    other = residual if x is None else with_contiguous_rows(x)
    y = torch.empty(residual.shape, dtype=out_dtype, device=residual.device)
    tokens, width = residual.shape
    if tokens:
        block = triton.next_power_of_2(width)
        launch(
            add_norm_kernel, (tokens,),
            other, residual, weight.contiguous(), y, other.stride(0), residual.stride(0), eps,
            WIDTH=width, HAS_X=x is not None, BLOCK=block, num_warps=warps_of(block),
        )  # fmt: skip
    return y


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """As ops.silu_mul says."""
    check_silu_mul(gate_up)
    gate_up = with_contiguous_rows(gate_up)
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    y = torch.empty((tokens, width), dtype=gate_up.dtype, device=gate_up.device)
    block = min(1024, triton.next_power_of_2(width))
    if tokens:
        launch(
            silu_mul_kernel, (tokens, triton.cdiv(width, block)),
            gate_up, y, gate_up.stride(0), WIDTH=width, BLOCK=block, num_warps=4,
        )  # fmt: skip
    return y
