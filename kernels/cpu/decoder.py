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
NORMS = ("attention_norm", "mlp_norm", "query_norm", "key_norm")


class LayerArgs(ctypes.Structure):
    """The struct of the same name in decoder.cpp."""

    _fields_ = [
        *((name, c_void_p) for name in NORMS),
        *((name, native.Matrix) for name in MATRICES),
        *((name, c_void_p) for name in ("key_cache", "value_cache")),
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
    has_product = native.multiplies_bfloat16 if dtype == torch.bfloat16 else dtype == torch.float32
    return native.available and has_product and all(packing.fits(*size) for size in (*sizes, down))


class PackedStack:
    """Layers of a decoder, their weights packed. `can_pack` says whether this can be made.

    dtype: of weights, scratch and caches.
    """

    def __init__(self, shape: StackShape, layers: Iterable[LayerWeights]) -> None:
        self.shape = shape
        self._kept: list[torch.Tensor | packing.PackedMatrix] = []
        self.dtype = torch.float32
        packed = [self._pack(layer) for layer in layers]
        self._layers = (LayerArgs * len(packed))(*packed)

    def _pack(self, layer: LayerWeights) -> LayerArgs:
        self.dtype = layer.qkv.dtype
        matrices = {}
        for name, bias, four_bits in zip(MATRICES, layer.biases, layer.four_bits, strict=True):
            weight = getattr(layer, name)
            if name == "gate_up":
                weight = packing.interleave_halves(weight)
                bias = None if bias is None else packing.interleave_halves(bias)
                four_bits = four_bits and FourBits(*map(packing.interleave_halves, four_bits))
            matrix = packing.PackedMatrix(weight, bias, four_bits)
            self._kept.append(matrix)
            matrices[name] = matrix.args
        return LayerArgs(**{name: self._keep(getattr(layer, name)) for name in NORMS}, **matrices)

    def __len__(self) -> int:
        return len(self._layers)

    def _keep(self, norm: torch.Tensor | None) -> int | None:
        if norm is None:
            return None
        norm = norm.float().contiguous()
        self._kept.append(norm)
        return norm.data_ptr()

    def run(
        self, residual: torch.Tensor, caches: Sequence[tuple[torch.Tensor, torch.Tensor]], inputs: PagedInputs
    ) -> None:
        """As ops.run_stack says."""
        shape, tokens = self.shape, len(residual)
        query, width = shape.heads * shape.head_dim, (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        scratch = [
            torch.empty(tokens, columns, dtype=self.dtype)
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
