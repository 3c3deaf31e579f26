"""Whole decoder layers in one call (decoder.cpp): hands pointers over, keeps the weights that they point to.

Knows: the library's C interface. Must not know: models, requests.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from ctypes import c_float, c_int64, c_void_p

import torch

from kernels.cpu import native, packing
from kernels.stack import FourBits, LayerWeights, PagedInputs, StackShape

MATRICES = ("qkv", "out", "gate_up", "down")
FOUR_BITS = tuple(f"{name}_q4" for name in MATRICES)


class LayerArgs(ctypes.Structure):
    """The struct of the same name in decoder.cpp."""

    _fields_ = [
        (name, c_void_p) for name in ("attention_norm", "mlp_norm", *MATRICES, *FOUR_BITS, "key_cache", "value_cache")
    ]


class DecoderArgs(ctypes.Structure):
    """The struct of the same name in decoder.cpp."""

    _fields_ = [
        *((name, c_void_p) for name in ("residual", "x", "qkv", "inner", "cos", "sin", "slots", "layers")),
        ("attention", native.AttentionArgs),
        *((name, c_int64) for name in ("hidden", "intermediate", "num_layers")),
        ("eps", c_float),
    ]


def can_pack(shape: StackShape, dtype: torch.dtype) -> bool:
    """Whether layers of this shape can run in one call here."""
    query, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes = ((query + 2 * kv, shape.hidden), (shape.hidden, query), (2 * shape.intermediate, shape.hidden))
    down = (shape.hidden, shape.intermediate)
    return native.has_gemm and dtype == torch.bfloat16 and all(packing.fits(*size) for size in (*sizes, down))


class PackedStack:
    """Layers of a decoder, their weights packed. `can_pack` says whether this can be made."""

    def __init__(self, shape: StackShape, layers: Iterable[LayerWeights]) -> None:
        self._shape = shape
        self._kept: list[torch.Tensor] = []
        packed = [self._pack(layer) for layer in layers]
        self._layers = (LayerArgs * len(packed))(*packed)

    def _pack(self, layer: LayerWeights) -> LayerArgs:
        four_bits = {
            name: self._keep(packing.pack_four_bits(_interleaved(weight) if name == "gate_up_q4" else weight))
            for name, weight in zip(FOUR_BITS, layer.four_bits, strict=True)
            if weight is not None
        }
        return LayerArgs(
            attention_norm=self._keep(layer.attention_norm.float().contiguous()),
            mlp_norm=self._keep(layer.mlp_norm.float().contiguous()),
            qkv=self._keep(packing.pack_blocks(layer.qkv)),
            out=self._keep(packing.pack_blocks(layer.out)),
            gate_up=self._keep(packing.pack_blocks(packing.interleave_halves(layer.gate_up))),
            down=self._keep(packing.pack_blocks(layer.down)),
            **four_bits,
        )

    def __len__(self) -> int:
        return len(self._layers)

    def _keep(self, tensor: torch.Tensor) -> int:
        self._kept.append(tensor)
        return tensor.data_ptr()

    def run(
        self, residual: torch.Tensor, caches: Sequence[tuple[torch.Tensor, torch.Tensor]], inputs: PagedInputs
    ) -> None:
        """As ops.run_stack says."""
        shape, tokens = self._shape, len(residual)
        query, width = shape.heads * shape.head_dim, (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        scratch = [
            torch.empty(tokens, columns, dtype=torch.bfloat16)
            for columns in (max(shape.hidden, query), width, shape.intermediate)
        ]
        for args, (key_cache, value_cache) in zip(self._layers, caches, strict=True):
            args.key_cache, args.value_cache = key_cache.data_ptr(), value_cache.data_ptr()
        attention = native.attention_args(
            scratch[1].view(tokens, -1, shape.head_dim)[:, : shape.heads], *caches[0], scratch[0],
            inputs.block_tables, inputs.query_starts, inputs.context_lens, shape.scale,
        )  # fmt: skip
        args = DecoderArgs(
            residual.data_ptr(), *(buffer.data_ptr() for buffer in scratch), inputs.cos.data_ptr(),
            inputs.sin.data_ptr(), inputs.slots.data_ptr(), ctypes.addressof(self._layers), attention,
            shape.hidden, shape.intermediate, len(self._layers), shape.eps,
        )  # fmt: skip
        native.check(native.decoder_layers(args), caches[0][0].shape[0])


def _interleaved(gate_up: FourBits) -> FourBits:
    return FourBits(*(packing.interleave_halves(part) for part in gate_up))
