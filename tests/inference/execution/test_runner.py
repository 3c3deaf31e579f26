"""What the runner overwrites."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from inference.execution.cache import KVCache
from inference.execution.runner import ModelRunner


def test_blocks_are_zeroed_in_the_keys_and_values_of_all_layers_and_no_others() -> None:
    layers = [(torch.full((4, 2), torch.nan), torch.full((4, 2), torch.nan)) for _ in range(2)]
    ModelRunner(SimpleNamespace(), KVCache(layers, num_blocks=4, block_size=2)).zero([3, 1])  # type: ignore[arg-type]
    for cache in (cache for layer in layers for cache in layer):
        assert not cache[[1, 3]].any()
        assert cache[[0, 2]].isnan().all()
