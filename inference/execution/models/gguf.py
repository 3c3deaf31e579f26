"""A GGUF file, converted once into a folder of config.json, safetensors and tokenizer files.

Knows: how a file is read and a folder written. Must not know: torch, how a model runs. The folder is what transformers
would save for the dequantised model: it can load it too.

Quantised weights are stored as float32, in which they are exact; F16 and BF16 stay as they are. So the folder is larger
than the file (SmolLM2: 98 MB become 540 MB), and loading it is reading it. The layers' matrices of four bits are kept a
second time as the file has them (66 MB), for products that are as fast as their weights are read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from inference.execution.models import quants
from inference.execution.models.errors import ModelError
from inference.execution.models.gguf_config import ROPE_FACTORS, hugging_face_name, model_config, undo_interleave
from inference.execution.models.gguf_tokenizer import write_tokenizer
from inference.execution.models.safetensors_file import TensorPlan, write_safetensors
from inference.execution.models.shards import FOUR_BITS
from inference.execution.models.store import make_once

CONVERTER = 3  # raise it when the folder of a file changes: it is part of the folder's name
STORED = {"F16": "F16", "BF16": "BF16"}  # others: F32


def convert_gguf(path: Path, cache_dir: Path, progress: Callable[[str], None] = print) -> Path:
    """Folder of the converted model in `cache_dir`, made where it is not there yet (seconds for SmolLM2).

    Raises ModelError for a file that can't be read, an architecture or a tensor type that is not supported.
    """
    if not path.is_file():
        raise ModelError(f"there is no file {path}.")

    def build(folder: Path) -> None:
        progress(f"converting {path.name} (once)")
        reader = _open(path)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        factors = tensors.pop(ROPE_FACTORS, None)
        config = model_config(metadata, tensors, None if factors is None else _values(factors))
        _write_json(folder / "config.json", config)
        _write_json(folder / "generation_config.json", {"eos_token_id": config["eos_token_id"]})
        write_tokenizer(metadata, folder, config["max_position_embeddings"])
        write_safetensors(folder / "model.safetensors", _plans(list(tensors.values()), config, progress))
        if kept := list(_four_bit_plans(list(tensors.values()), config)):
            write_safetensors(folder / FOUR_BITS, kept)

    # Four-bit weights grow eightfold; a header alone does not say how much of the file they are.
    return make_once(cache_dir / _key(path), build, 8 * path.stat().st_size, f"converting {path.name}")


def _key(path: Path) -> str:
    """Name of the folder: another for another file, the same for the same wherever it lies. Reads 2 MiB at most."""
    state = path.stat()
    digest = hashlib.sha256(f"{CONVERTER} {state.st_size} {state.st_mtime_ns} ".encode())
    with path.open("rb") as file:
        digest.update(file.read(1 << 20))
        file.seek(max(0, state.st_size - (1 << 20)))
        digest.update(file.read())
    return f"{path.stem}-{digest.hexdigest()[:12]}"


def _open(path: Path) -> Any:
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, MemoryError) as error:
        raise ModelError(f"{path.name} is not a GGUF file that can be read: {error}.") from error


def _plans(tensors: list[Any], config: dict[str, Any], progress: Callable[[str], None]) -> Iterator[TensorPlan]:
    for i, tensor in enumerate(tensors):
        kind = tensor.tensor_type.name
        quants.check_type(kind)

        def values(i: int = i, tensor: Any = tensor) -> np.ndarray:
            if i % (len(tensors) // 4 + 1) == 0:
                progress(f"  {i} of {len(tensors)} tensors")
            return undo_interleave(tensor.name, _values(tensor), config)

        yield TensorPlan(hugging_face_name(tensor.name), STORED.get(kind, "F32"), _shape(tensor), values)


def _four_bit_plans(tensors: list[Any], config: dict[str, Any]) -> Iterator[TensorPlan]:
    """The bytes of each row of the layers' matrices, rows in Hugging Face's order."""
    for tensor in tensors:
        kind, shape = tensor.tensor_type.name, _shape(tensor)
        if kind not in quants.FOUR_BITS or len(shape) != 2 or not tensor.name.startswith("blk."):
            continue
        width = quants.stored_bytes(kind, shape[1])

        def values(tensor: Any = tensor, rows: int = shape[0]) -> np.ndarray:
            raw = np.ascontiguousarray(tensor.data).reshape(-1).view(np.uint8).reshape(rows, -1)
            return undo_interleave(tensor.name, raw, config)

        yield TensorPlan(hugging_face_name(tensor.name), "U8", (shape[0], width), values)


def _values(tensor: Any) -> np.ndarray:
    """float32, or the 16-bit words of a type that is stored as it is."""
    kind, raw = tensor.tensor_type.name, np.asarray(tensor.data)
    return _plain_words(raw, _shape(tensor)) if kind in STORED else quants.dequantise(raw, kind, _shape(tensor))


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(int(n) for n in reversed(tensor.shape))


def _plain_words(raw: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.ascontiguousarray(raw).reshape(-1).view("<u2").reshape(shape)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
