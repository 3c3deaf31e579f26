"""The tensors of a model folder: one safetensors file, or several with an index.

Knows: file names and headers. Must not know: what a tensor is for. Never reads pickled weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from inference.execution.models.errors import ModelError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


class WeightFolder:
    """Reads tensors by name; files are mapped, not read whole. Every tensor given is a copy of its own."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._files: dict[str, Any] = {}  # tensor name -> open file
        for file in _files(folder):
            try:
                opened = safe_open(file, framework="pt", device="cpu")
            except (OSError, SafetensorError) as error:
                raise ModelError(f"{file} can't be read as safetensors: {error}.") from error
            self._files.update(dict.fromkeys(opened.keys(), opened))

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor in the folder's dtype and on its device. Raises ModelError where it is missing or misshapen."""
        if name not in self._files:
            raise ModelError(f"the model's weights lack the tensor {name}.")
        tensor = self._files[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise ModelError(f"the tensor {name} is {list(tensor.shape)}; config.json makes it {list(shape)}.")
        if not tensor.dtype.is_floating_point or tensor.dtype.itemsize < 2:
            raise ModelError(f"the tensor {name} is {tensor.dtype}; float32, float16 and bfloat16 are supported.")
        return tensor.to(self._device, self._dtype, copy=True)


def _files(folder: Path) -> list[Path]:
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if not (folder / INDEX).is_file():
        raise ModelError(f"{folder} holds neither {SINGLE} nor {INDEX}; other formats of weights are not read.")
    try:
        names = set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{folder / INDEX} can't be read: {error!r}.") from error
    # A name is a file of this folder, whatever the index says.
    return [folder / Path(str(name)).name for name in sorted(names)]
