"""Weights in the layout of gemm.hpp: blocks of 32 outputs, pairs of inputs side by side.

Knows: the layout. Must not know: what a weight is for.
"""

from __future__ import annotations

import torch

from kernels.stack import FourBits

BLOCK = 32  # outputs of a block
GROUP = 32  # inputs with one scale and one minimum


def fits(outputs: int, inputs: int) -> bool:
    """Whether a weight of this shape can be packed."""
    return outputs % BLOCK == 0 and inputs % 2 == 0


def pack_blocks(weight: torch.Tensor) -> torch.Tensor:
    """weight [out, in] as [out / 32, in / 2, 32, 2]."""
    outputs, inputs = weight.shape
    return weight.view(outputs // BLOCK, BLOCK, inputs // 2, 2).permute(0, 2, 1, 3).contiguous()


def pack_four_bits(weight: FourBits) -> torch.Tensor:
    """A weight in four bits in the layout of gemm_q4.hpp: uint8 [out / 32, in / 32, bytes of a group]."""
    outputs, inputs = weight.bits.shape
    shape = (outputs // BLOCK, BLOCK, inputs // GROUP)

    def halves(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(shape).transpose(1, 2).contiguous().view(torch.uint8)

    bits = weight.bits.reshape(*shape, GROUP // 2, 2).permute(0, 2, 3, 1, 4)
    both = (bits[..., 0] | bits[..., 1] << 4).flatten(2)
    return torch.cat((halves(weight.scale), halves(weight.minimum), both), 2).contiguous()


def interleave_halves(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [2 * inner, in] = gate | up, with 16 rows of each in turn: one block holds what belongs together."""
    half = BLOCK // 2
    gate, up = gate_up.chunk(2)
    return torch.stack((gate.unflatten(0, (-1, half)), up.unflatten(0, (-1, half))), 1).flatten(0, 2)
