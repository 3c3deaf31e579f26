"""The tensors of a model folder, by name.

Knows: safetensors files. Must not know: what a tensor is for. Never reads pickled weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from inference.execution.models import quants
from inference.execution.models.errors import ModelError
from inference.execution.models.shards import FOUR_BITS, weight_files
from kernels import ops


class WeightFolder:
    """Reads tensors by name; files are mapped, not read whole. Every tensor given is a copy of its own."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._files: dict[str, Any] = {}  # tensor name -> open file
        for file in weight_files(folder):
            try:
                opened = safe_open(file, framework="pt", device="cpu")
            except (OSError, SafetensorError) as error:
                raise ModelError(f"{file} can't be read as safetensors: {error}.") from error
            self._files.update(dict.fromkeys(opened.keys(), opened))
        extra = folder / FOUR_BITS
        self._four_bits = safe_open(extra, framework="pt", device="cpu") if extra.is_file() else None

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

    def take_four_bits(self, name: str, rows: int, columns: int) -> ops.FourBits | None:
        """The matrix in four bits, where the folder came from a GGUF file that has it so."""
        if self._four_bits is None or name not in self._four_bits.keys():  # noqa: SIM118 - no container of its own
            return None
        raw = self._four_bits.get_tensor(name).view(rows, columns // 32, -1)
        scale = raw[..., :2].contiguous().view(torch.float16)[..., 0]
        has_minimum = raw.shape[2] == quants.FOUR_BITS["Q4_1"]
        minimum = raw[..., 2:4].contiguous().view(torch.float16)[..., 0] if has_minimum else -8 * scale
        packed = raw[..., -16:]
        bits = torch.cat((packed & 15, packed >> 4), 2).view(rows, columns)
        return ops.FourBits(scale, minimum, bits)
