"""Linear layers on the CPU: weights packed once for oneDNN in bfloat16, plain otherwise.

Knows: which product torch has that is fast for few rows. Must not know: models or caches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A bfloat16 weight [out_features, in_features] in oneDNN's own blocked layout."""

    data: torch.Tensor
    out_features: int
    in_features: int


def pack(weight: torch.Tensor) -> PackedLinear | torch.Tensor:
    """Pack weight [out, in]. Only bfloat16 has a packed form that pays; others are given back as they are."""
    if weight.dtype != torch.bfloat16 or not torch.backends.mkldnn.is_available():
        return weight
    out_features, in_features = weight.shape
    return PackedLinear(torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()), out_features, in_features)


def linear(x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
    """x [T, in] times the packed weight: [T, out]. One row takes a path ten times slower, so it gets a twin."""
    if x.dim() != 2 or x.shape[1] != packed.in_features:
        raise ValueError(f"x {list(x.shape)} does not fit a weight [{packed.out_features}, {packed.in_features}]")
    if x.shape[0] == 1:
        return torch.ops.mkldnn._linear_pointwise(x.expand(2, -1).contiguous(), packed.data, None, "none", [], "")[:1]
    return torch.ops.mkldnn._linear_pointwise(x, packed.data, None, "none", [], "")
