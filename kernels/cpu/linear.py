"""Linear layers on the CPU: weights packed once for our own kernel, or for oneDNN where they don't fit it.

Knows: which product is fast for few rows. Must not know: models or caches.
"""

from __future__ import annotations

import torch

from kernels.cpu import native
from kernels.cpu.packing import PackedMatrix, fits, multiplies_bfloat16


class OurLinear:
    """A weight [out_features, in_features] in blocks."""

    keeps_sums = True

    def __init__(self, weight: torch.Tensor) -> None:
        self._matrix = PackedMatrix(weight)

    def __call__(self, x: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
        """x [T, in] times the weight: [T, out]."""
        matrix = self._matrix
        _check(x, matrix.out_features, matrix.in_features)
        if x.dtype != matrix.dtype:
            raise ValueError(f"a weight packed for {matrix.dtype} takes no {x.dtype}")
        kept = x.dtype if out_dtype == x.dtype else torch.float32  # the two that the kernel writes
        return native.linear(x, matrix.args, matrix.out_features, kept).to(out_dtype)


class OneDnnLinear:
    """A bfloat16 weight [out_features, in_features] in oneDNN's own layout."""

    keeps_sums = False

    def __init__(self, weight: torch.Tensor) -> None:
        self._shape = weight.shape
        self._data = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())

    def __call__(self, x: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
        """x [T, in] times the weight: [T, out]. One row takes a slow path of oneDNN's, so it gets a twin."""
        _check(x, *self._shape)
        rows = x if x.shape[0] != 1 else x.expand(2, -1).contiguous()
        return torch.ops.mkldnn._linear_pointwise(rows, self._data, None, "none", [], "")[: x.shape[0]].to(out_dtype)


def pack(weight: torch.Tensor) -> OurLinear | OneDnnLinear | torch.Tensor:
    """Pack weight [out, in]; one that no packed form serves is given back as it is."""
    is_half = weight.dtype == torch.bfloat16
    ours = (
        native.available and fits(*weight.shape) and (multiplies_bfloat16 if is_half else weight.dtype == torch.float32)
    )
    if ours:
        return OurLinear(weight)
    return OneDnnLinear(weight) if is_half and _onednn_packs_bfloat16() else weight


def _onednn_packs_bfloat16() -> bool:
    """Not on CPUs that have AVX2 and nothing more; PyTorch's own product serves these."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _check(x: torch.Tensor, outputs: int, inputs: int) -> None:
    if x.dim() != 2 or x.shape[1] != inputs:
        raise ValueError(f"x {list(x.shape)} does not fit a weight [{outputs}, {inputs}]")
