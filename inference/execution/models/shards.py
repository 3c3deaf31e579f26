"""Where a model folder's weights are: one safetensors file, or several (shards) with an index.

Knows: file names. Must not know: torch, what is in the files.
"""

from __future__ import annotations

import json
from pathlib import Path

from inference.execution.models.errors import ModelError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
FOUR_BITS = "four_bits.safetensors"  # beside SINGLE: matrices as a GGUF file has them
PICKLED = ("*.bin", "*.pt", "*.pth")


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files, all there. Raises ModelError for one that is missing or lies elsewhere."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if not (folder / INDEX).is_file():
        raise ModelError(_without_weights(folder))
    try:
        names = {str(name) for name in json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{folder / INDEX} can't be read: {error!r}.") from error
    for name in sorted(names):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelError(f"{folder / INDEX} names {name!r}, which is no safetensors file of that folder.")
        if not (folder / name).is_file():
            raise ModelError(f"{folder} lacks {name}, one of the {len(names)} files that hold the model's weights.")
    return [folder / name for name in sorted(names)]


def _without_weights(folder: Path) -> str:
    pickled = sorted(path.name for pattern in PICKLED for path in folder.glob(pattern))
    if pickled:
        return f"{folder} holds pickled weights only ({pickled[0]}), which can run code; only safetensors are read."
    return f"{folder} holds neither {SINGLE} nor {INDEX}; other formats of weights are not read."
