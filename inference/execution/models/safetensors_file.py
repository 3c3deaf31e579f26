"""Writing a safetensors file tensor by tensor, so that a conversion holds one tensor in memory, not the model.

Knows: the format (8 bytes of header length, a JSON header, the data). Must not know: models. Reading is the safetensors
package's work.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from inference.execution.models.errors import ModelError

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1}


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """A tensor to be written: `values()` gives its data when its turn comes (BF16 and F16 as 16-bit words)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: Callable[[], np.ndarray]


def write_safetensors(path: Path, plans: Iterable[TensorPlan]) -> None:
    plans = list(plans)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for plan in plans:
        end = offset + int(np.prod(plan.shape)) * ITEM_BYTES[plan.dtype]
        header[plan.name] = {"dtype": plan.dtype, "shape": plan.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for plan in plans:
            data = np.ascontiguousarray(plan.values())
            if data.shape != plan.shape or data.itemsize != ITEM_BYTES[plan.dtype]:
                raise ModelError(f"tensor {plan.name} came as {data.shape}, {plan.shape} was expected.")
            file.write(data.data)
        file.flush()
        os.fsync(file.fileno())  # the folder's rename must not reach the disk before its data
