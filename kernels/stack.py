"""What a stack of decoder layers is made of: plain data for `ops.pack_stack` and `ops.run_stack`.

Knows: names and shapes. Must not know: how anything is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch


@dataclass(frozen=True, slots=True)
class StackShape:
    """Sizes that all layers have in common. scale: of attention scores.  eps: of the norms."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    eps: float


class FourBits(NamedTuple):
    """A weight [out, in] as scale * bits + minimum for each 32 inputs of a row: what the rounded weight was made of.

    scale, minimum: float16 [out, in / 32].  bits: uint8 [out, in], 0 to 15.
    """

    scale: torch.Tensor
    minimum: torch.Tensor
    bits: torch.Tensor


class LayerWeights(NamedTuple):
    """attention_norm, mlp_norm [hidden], float32.  qkv [(H + 2 KH) D, hidden]: query, key and value heads.
    out [hidden, H D].  gate_up [2 * intermediate, hidden]: gate, then up.  down [hidden, intermediate].
    biases, four_bits: of the four matrices, in this order; None where one has none, or not in four bits.
    query_norm, key_norm [D]: of each head on its own, before it is rotated; None: they are not normed."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    out: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    four_bits: tuple[FourBits | None, ...] = (None, None, None, None)
    biases: tuple[torch.Tensor | None, ...] = (None, None, None, None)
    query_norm: torch.Tensor | None = None
    key_norm: torch.Tensor | None = None


class PagedInputs(NamedTuple):
    """A batch on the device, in the form in which every layer needs it; see `ops.paged_attention` and `ops.rotary`."""

    cos: torch.Tensor  # float32 [T, D / 2]
    sin: torch.Tensor
    slots: torch.Tensor  # int64 [T]
    block_tables: torch.Tensor  # int32 [R, M]
    query_starts: torch.Tensor  # int32 [R + 1]
    context_lens: torch.Tensor  # int32 [R]
    max_query_len: int
    max_context_len: int
