"""Weights in the layouts of gemm.hpp and gemm_q4.hpp: blocks of outputs, so that one goes by for many rows.

Knows: the layouts. Must not know: what a weight is for.
"""

from __future__ import annotations

import torch

from kernels.cpu.native import BLOCK, DTYPE_CODES, Matrix
from kernels.cpu.native import multiplies_bfloat16 as multiplies_bfloat16
from kernels.stack import FourBits

GROUP = 32  # inputs with one scale and one minimum


def fits(outputs: int, inputs: int) -> bool:
    """Whether a weight of this shape can be packed."""
    return outputs % BLOCK == 0 and inputs % 2 == 0


class PackedMatrix:
    """A weight [out, in], its bias and its four bits, packed; `args` points into what it holds."""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, four_bits: FourBits | None = None
    ) -> None:
        self.out_features, self.in_features = weight.shape
        self.dtype = weight.dtype  # of the inputs that it takes
        self._weight = pack_pairs(weight) if weight.dtype == torch.bfloat16 else pack_rows(_narrowed(weight))
        self._bias = None if bias is None else bias.float().contiguous()
        self._four_bits = None if four_bits is None else pack_four_bits(four_bits)
        pointers = (None if one is None else one.data_ptr() for one in (self._weight, self._four_bits, self._bias))
        self.args = Matrix(*pointers, DTYPE_CODES[self._weight.dtype])


def pack_pairs(weight: torch.Tensor) -> torch.Tensor:
    """weight [out, in] as [out / BLOCK, in / 2, BLOCK, 2]."""
    outputs, inputs = weight.shape
    return weight.view(outputs // BLOCK, BLOCK, inputs // 2, 2).permute(0, 2, 1, 3).contiguous()


def pack_rows(weight: torch.Tensor) -> torch.Tensor:
    """weight [out, in] as [out / BLOCK, in, BLOCK]."""
    return weight.view(len(weight) // BLOCK, BLOCK, -1).transpose(1, 2).contiguous()


def _narrowed(weight: torch.Tensor) -> torch.Tensor:
    """In bfloat16 where those are the same numbers, as most models' files have them: half as much to read."""
    half = weight.bfloat16()
    return half if torch.equal(half.float(), weight) else weight


def pack_four_bits(weight: FourBits) -> torch.Tensor:
    """A weight in four bits in the layout of gemm_q4.hpp: uint8 [out / BLOCK, in / GROUP, bytes of a group]."""
    outputs, inputs = weight.bits.shape
    shape = (outputs // BLOCK, BLOCK, inputs // GROUP)

    def halves(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(shape).transpose(1, 2).contiguous().view(torch.uint8)

    bits = weight.bits.reshape(*shape, GROUP // 2, 2).permute(0, 2, 3, 1, 4)
    both = (bits[..., 0] | bits[..., 1] << 4).flatten(2)
    return torch.cat((halves(weight.scale), halves(weight.minimum), both), 2).contiguous()


def interleave_halves(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [2 * inner, ...] = gate | up, half a block of each in turn: one block holds what belongs together."""
    half = BLOCK // 2
    gate, up = gate_up.chunk(2)
    return torch.stack((gate.unflatten(0, (-1, half)), up.unflatten(0, (-1, half))), 1).flatten(0, 2)
