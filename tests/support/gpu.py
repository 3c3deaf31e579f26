"""Tests that only a GPU can pass, and tests of kernels moved to one. `bench/gpu_check.sh` runs them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

IS_COMPILED = os.environ.get("TRITON_INTERPRET") == "0"  # the settings of the test run make it 1 where it is not set
IS_HERE = torch.cuda.is_available() and IS_COMPILED


def needs_gpu(test: Callable[..., None]) -> Callable[..., None]:
    """Marks it `gpu`; skipped where there is none."""
    reason = "needs a CUDA device and TRITON_INTERPRET=0, as bench/gpu_check.sh sets it"
    return pytest.mark.gpu(pytest.mark.skipif(not IS_HERE, reason=reason)(test))


class OnDevice:
    """A backend whose operations run on a device: tensors are moved there, and what was changed there is moved back."""

    def __init__(self, backend: Any, device: str = "cuda") -> None:
        self._backend, self._device = backend, device

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._backend, name)
        if not callable(operation):
            return operation

        def moved(*args: Any, **kwargs: Any) -> Any:
            pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
            values = [self._there(value, pairs) for value in args]
            named = {key: self._there(value, pairs) for key, value in kwargs.items()}
            result = _map(operation(*values, **named), lambda tensor: tensor.cpu())
            for here, there in pairs:
                here.copy_(there)
            return result

        return moved

    def _there(self, value: Any, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
        def move(tensor: torch.Tensor) -> torch.Tensor:
            """With the same strides: some operations take slices, some must refuse them."""
            extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            if not tensor.numel():
                return tensor.to(self._device)
            whole = tensor.as_strided((extent,), (1,)).to(self._device, copy=True)
            there = whole.as_strided(tensor.shape, tensor.stride())
            pairs.append((tensor, there))
            return there

        return _map(value, move)


def _map(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same with each tensor changed, in tuples and lists, too."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map(one, change) for one in value))
    return type(value)(_map(one, change) for one in value) if isinstance(value, tuple | list) else value
