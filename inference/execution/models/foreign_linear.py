"""The linear layers of a model of transformers, through kernels.ops where that pays, and a head that is exact.

Knows: torch.nn.Linear, and how to put another product in its place. Must not know: architectures.
In bfloat16 on a CPU a plain product of one row takes several times as long as the packed one: decoding for one person.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from inference.execution.models.head import Head
from kernels import ops


def sharpen_head(model: Any) -> None:
    """Let the last layer give float32 logits, the best ones exact (see head.py). One with a bias stays as it is."""
    linear = model.get_output_embeddings()
    if _is_low(linear) and linear.bias is None:
        _replace(linear, Head(linear.weight.detach()))


def pack_linears(model: Any) -> None:
    """Pack the weights of all linear layers but the head on a CPU, and drop what was packed.

    Weights that other modules hold as well stay. A model that reads a layer's weight in some other way fails its trial.
    """
    others = [module for module in model.modules() if type(module) is not torch.nn.Linear]
    shared = {id(weight) for module in others for weight in module.parameters(recurse=False)}
    shared.add(id(getattr(model.get_output_embeddings(), "weight", None)))
    for module in model.modules():
        if _is_low(module) and module.weight.device.type == "cpu" and id(module.weight) not in shared:
            _replace(module, _packed(module.weight.detach(), module.bias))
            module.weight.data = module.weight.new_empty(0)


def _is_low(module: Any) -> bool:
    """Whether it is a plain linear layer in less than float32."""
    return type(module) is torch.nn.Linear and module.weight.dtype != torch.float32


def _packed(weight: torch.Tensor, bias: torch.Tensor | None) -> Callable[[torch.Tensor], torch.Tensor]:
    packed = ops.pack_linear(weight)
    return lambda x: ops.linear(x, packed) if bias is None else ops.linear(x, packed) + bias


def _replace(linear: torch.nn.Module, product: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Let product, of [rows, in], answer in the layer's place for input of any number of dims."""
    linear.__dict__["forward"] = lambda x: product(x.flatten(0, -2)).unflatten(0, x.shape[:-1])
