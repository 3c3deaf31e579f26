"""transformers' attention over our paged KV cache.

Knows: transformers' attention interface, the operations of kernels.ops. Must not know: architectures, how a model is
loaded, requests.

A model of transformers calls the attention function that its configuration names, once a layer, with that layer's
module. Ours finds what it needs (cache, slots, block tables of this batch) on an attribute of the module: not all
models hand keyword arguments down to their layers. The attribute is the same object for all modules of one model:

    Probe           notes what each call asks for, and answers with zeros
    PagedAttention  writes keys and values to their slots and attends through block tables

Layers are told apart by the order of their calls, so that a module that runs twice in a pass has two caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from inference.execution.cache import KVCache
from inference.execution.device_batch import DeviceBatch
from inference.execution.models.foreign_probe import Probe, probe_mask
from kernels import ops

PAGED = "batchscope_paged"  # no mask is registered under this name, so transformers builds none
PROBE = "batchscope_probe"
_ATTRIBUTE = "batchscope_attention"


class PagedAttention:
    """Attention of one model. Calls are served only inside `batch`."""

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._calls = 0
        self._inputs: DeviceBatch | None = None
        self._caches: list[tuple[torch.Tensor, torch.Tensor]] = []

    @contextmanager
    def batch(self, inputs: DeviceBatch, cache: KVCache) -> Iterator[None]:
        """Serve the calls of one forward pass. Raises RuntimeError where they are not one a layer."""
        self._calls, self._inputs, self._caches = 0, inputs, cache.layers
        try:
            yield
            if self._calls != self._layers:
                raise RuntimeError(f"the model called attention {self._calls} times, not {self._layers}")
        finally:
            self._inputs, self._caches = None, []

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: dict[str, Any],
    ) -> torch.Tensor:
        """query [1, H, T, D], key [1, KH, T, D], value [1, KH, T, V]: [1, T, H, V]. Zeros fill up what is narrower."""
        inputs, self._calls = self._inputs, self._calls + 1
        if inputs is None or self._calls > self._layers or mask is not None:
            raise RuntimeError("attention was called with a mask, too often or outside of a batch")
        key_cache, value_cache = self._caches[self._calls - 1]
        width = value_cache.shape[3]
        keys, values = (_rows(x, width).to(value_cache.dtype) for x in (key, value))
        ops.write_kv(keys, values, key_cache, value_cache, inputs.slots)
        out = ops.paged_attention(
            _rows(query, width),
            key_cache,
            value_cache,
            inputs.block_tables,
            inputs.query_starts,
            inputs.context_lens,
            _scale(query, options.get("scaling")),
            inputs.max_query_len,
            inputs.max_context_len,
        )
        return out[None, :, :, : value.shape[-1]]


def attach(model: torch.nn.Module, attention: Probe | PagedAttention) -> None:
    """Make `attention` answer the calls of all modules of a model."""
    for module in model.modules():
        setattr(module, _ATTRIBUTE, attention)


def register() -> None:
    """Tell transformers of both names. Once or more: it keeps one entry a name."""
    from transformers import AttentionInterface, AttentionMaskInterface

    for name in (PAGED, PROBE):
        AttentionInterface.register(name, _attention)
    AttentionMaskInterface.register(PROBE, probe_mask)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function; it wants a pair, with no weights as the second."""
    return getattr(module, _ATTRIBUTE).attend(module, query, key, value, attention_mask, options), None


def _rows(x: torch.Tensor, width: int) -> torch.Tensor:
    """[1, H, T, D] -> [T, H, width], zeros past D."""
    rows = x[0].transpose(0, 1)
    return rows if rows.shape[2] == width else torch.nn.functional.pad(rows, (0, width - rows.shape[2]))


def _scale(query: torch.Tensor, scaling: float | None) -> float:
    return float(query.shape[-1] ** -0.5 if scaling is None else scaling)
