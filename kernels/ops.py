"""The only door to the kernels: checks an operation's arguments and hands it to the backend of its device.

Knows: who serves which device. Must not know: how anything is computed.

    cpu    kernels.cpu.native, C++ built at first use; kernels.cpu.portable where there is no compiler
    cuda   kernels.triton.backend
    else   kernels.reference, the specification; BATCHSCOPE_KERNELS=reference forces it everywhere

Tensors of one call are on one device. KV layout, the same for all backends (T tokens, R sequences, D head_dim):
    key_cache [num_blocks, kv_heads, D, block_size], value_cache [num_blocks, kv_heads, block_size, D]
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, overload

import torch

from kernels import checks, reference
from kernels.reference import NUMERICAL_ERROR as NUMERICAL_ERROR
from kernels.reference import UNDECIDED as UNDECIDED
from kernels.stack import FourBits as FourBits
from kernels.stack import LayerWeights as LayerWeights
from kernels.stack import PagedInputs as PagedInputs
from kernels.stack import StackShape as StackShape


@cache
def backend(device_type: str) -> Any:
    """The module that serves a kind of device: "cpu", "cuda", ... Chosen once in a process."""
    choice = os.environ.get("BATCHSCOPE_KERNELS", "auto")
    if choice not in ("auto", "reference"):
        raise ValueError(f"BATCHSCOPE_KERNELS is {choice!r}; it must be auto or reference")
    if choice == "auto" and device_type == "cpu":
        from kernels.cpu import native

        if native.available:
            return native
        from kernels.cpu import portable

        return portable
    if choice == "auto" and device_type == "cuda":
        from kernels.triton import backend as triton_backend

        return triton_backend
    return reference


def new_kv_cache(
    num_blocks: int, block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device | str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Zeroed key and value cache of one layer. Raises ValueError where a size is not positive or the dtype unknown."""
    if min(num_blocks, block_size, kv_heads, head_dim) < 1 or dtype not in checks.DTYPES:
        raise ValueError(
            f"no KV cache of {num_blocks} blocks of {block_size} positions, {kv_heads} heads, {head_dim} dims, {dtype}"
        )
    key_cache = torch.zeros(num_blocks, kv_heads, head_dim, block_size, dtype=dtype, device=device)
    return key_cache, torch.zeros(num_blocks, kv_heads, block_size, head_dim, dtype=dtype, device=device)


def write_kv(
    key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, slots: torch.Tensor
) -> None:
    """Write key and value [T, kv_heads, D] into the slots (int64 [T], block * block_size + offset) of the cache.

    A token with a negative slot is padding and is not written. (The CPU's C++, where nothing is padded, refuses it.)
    """
    checks.check_write_kv(key, value, key_cache, value_cache, slots)
    backend(key.device.type).write_kv(key, value, key_cache, value_cache, slots)


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
    """Causal attention through block tables: prefill, decode and both at once. Gives [T, H, D].

    query [T, H, D]; sequence r owns the rows query_starts[r]:query_starts[r + 1] (int32 [R + 1]), its query i stands at
    position context_lens[r] - query_len + i (int32 [R]), its position p is in block block_tables[r, p // block_size]
    (int32 [R, M]). Query head h reads KV head h // (H / kv_heads). max_query_len and max_context_len bound the lengths,
    so that a GPU launch need not wait for them: it follows from shapes and these two alone, and can be captured in a
    graph. Slots past context_lens may hold NaN. On a GPU a sequence of one token whose context is empty is padding: it
    gets zeros (the CPU, which needs no padding, refuses it).
    """
    checks.check_paged_attention(query, key_cache, value_cache, block_tables, query_starts, context_lens)
    return backend(query.device.type).paged_attention(
        query, key_cache, value_cache, block_tables, query_starts, context_lens, scale, max_query_len, max_context_len
    )


def rotary(query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate query [T, H, D] and key [T, KH, D] in place; cos, sin float32 [T, D / 2]. Rotate-half, as in Llama."""
    checks.check_rotary(query, key, cos, sin)
    backend(query.device.type).rotary(query, key, cos, sin)


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
    """`rotary` of query, in place, and of key, and `write_kv` of the rotated key and of value, in one.

    What key holds afterwards is open: read it from the cache.
    """
    checks.check_rotary_write(query, key, value, cos, sin, key_cache, value_cache, slots)
    backend(query.device.type).rotary_write_kv(query, key, value, cos, sin, key_cache, value_cache, slots)


@overload
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, residual: None = None) -> torch.Tensor: ...


@overload
def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]: ...


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """RMS norm of x [T, N]: y; with residual [T, N]: (norm of x + residual, x + residual)."""
    checks.check_rms_norm(x, weight, residual)
    return backend(x.device.type).rms_norm(x, weight, eps, residual)


def add_norm(
    x: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float, out_dtype: torch.dtype
) -> torch.Tensor:
    """Add x [T, N] to the residual stream, float32 [T, N], in place; give the RMS norm of the sum, [T, N] in out_dtype.

    x is in out_dtype, weight [N] in float32. All in float32 until the last rounding. Without x the norm alone.
    """
    checks.check_add_norm(x, residual, weight, out_dtype)
    return backend(residual.device.type).add_norm(x, residual, weight, eps, out_dtype)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """SiLU(gate) * up for gate_up [T, 2N] = gate | up: [T, N]."""
    checks.check_silu_mul(gate_up)
    return backend(gate_up.device.type).silu_mul(gate_up)


def sample_rows(
    logits: torch.Tensor, temperatures: torch.Tensor, seeds: torch.Tensor, indices: torch.Tensor
) -> torch.Tensor:
    """The id that each row of logits, float32 [S, vocab], gives, int64 [S] on the device, or a code below 0.

    temperatures: float32 [S], 0 for the largest logit (the lowest id among equals), else a draw keyed by seeds and
    indices, int64 [S]; see reference.sample_rows. A row does not depend on the others.
    NUMERICAL_ERROR: the row holds NaN or +inf, or -inf alone.  UNDECIDED: the best two of a draw are closer than
    1 part in 8,192, and other roundings might choose the other one: decide where all such choices are made alike.
    """
    checks.check_sample_rows(logits, temperatures, seeds, indices)
    return backend(logits.device.type).sample_rows(logits, temperatures, seeds, indices)


def pack_linear(weight: torch.Tensor) -> Any:
    """Prepare weight [out, in] for `linear` once. What it gives back is only for `linear`."""
    if weight.dim() != 2:
        raise ValueError(f"a linear weight is [out, in], not {list(weight.shape)}")
    if not _is_fast_cpu(weight.device):
        return weight
    from kernels.cpu import linear as cpu_linear

    return cpu_linear.pack(weight)


def linear(x: torch.Tensor, packed: Any, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    """x [T, in] times a weight from `pack_linear`: [T, out], in x's dtype or in out_dtype.

    float32 out of bfloat16 keeps the sums' precision where `sums_are_kept` says so, else it widens what is rounded.
    """
    wanted = out_dtype or x.dtype
    if isinstance(packed, torch.Tensor):
        return torch.nn.functional.linear(x, packed).to(wanted)
    return packed(x, wanted)


def sums_are_kept(packed: Any) -> bool:
    """Whether `linear` with this weight gives float32 sums that were never rounded."""
    return packed.dtype == torch.float32 if isinstance(packed, torch.Tensor) else packed.keeps_sums


def can_stack(shape: StackShape, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether decoder layers of this shape can run in one call here; else they run as operations of their own."""
    if not _is_fast_cpu(device):
        return False
    from kernels.cpu import decoder as cpu_decoder

    return cpu_decoder.can_pack(shape, dtype)


def pack_stack(shape: StackShape, layers: Iterable[LayerWeights]) -> Any:
    """Decoder layers for `run_stack`, where `can_stack` says so. Layers are taken one by one and not kept."""
    from kernels.cpu import decoder as cpu_decoder

    return cpu_decoder.PackedStack(shape, layers)


def run_stack(
    stack: Any, residual: torch.Tensor, caches: Sequence[tuple[torch.Tensor, torch.Tensor]], inputs: PagedInputs
) -> None:
    """Run packed layers over the residual stream [T, hidden], float32, in place; writes the KV of all T tokens.

    caches: a (key cache, value cache) of the stack's dtype for each layer. The specification is reference.run_stack.
    """
    checks.check_run_stack(residual, caches, inputs, len(stack), stack.shape, stack.dtype)
    stack.run(residual, caches, inputs)


def _is_fast_cpu(device: torch.device) -> bool:
    """Whether the CPU's own kernels serve it. They are imported when first asked for: that may compile them."""
    return device.type == "cpu" and os.environ.get("BATCHSCOPE_KERNELS") != "reference"
