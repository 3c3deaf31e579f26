"""Linear layers on the CPU: bfloat16 weights packed once, for our own kernel where the CPU multiplies bfloat16, else
for oneDNN; others plain.

Knows: which product is fast for few rows. Must not know: models or caches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.cpu import native, packing


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A bfloat16 weight [out_features, in_features]; is_ours: in blocks for our kernel, else in oneDNN's own layout."""

    data: torch.Tensor
    out_features: int
    in_features: int
    is_ours: bool

    def __call__(self, x: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
        """x [T, in] times the weight: [T, out]. One row takes a slow path of oneDNN's, so it gets a twin there."""
        if x.dim() != 2 or x.shape[1] != self.in_features:
            raise ValueError(f"x {list(x.shape)} does not fit a weight [{self.out_features}, {self.in_features}]")
        if self.is_ours:
            return native.linear(x, self.data, self.out_features, out_dtype)
        rows = x if x.shape[0] != 1 else x.expand(2, -1).contiguous()
        return torch.ops.mkldnn._linear_pointwise(rows, self.data, None, "none", [], "")[: x.shape[0]].to(out_dtype)


def pack(weight: torch.Tensor) -> PackedLinear | torch.Tensor:
    """Pack weight [out, in]. Only bfloat16 has a packed form that pays; others are given back as they are."""
    if weight.dtype != torch.bfloat16:
        return weight
    outputs, inputs = weight.shape
    if native.has_gemm and packing.fits(outputs, inputs):
        return PackedLinear(packing.pack_blocks(weight), outputs, inputs, True)
    if not torch.backends.mkldnn.is_available():
        return weight
    return PackedLinear(torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()), outputs, inputs, False)
