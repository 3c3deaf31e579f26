"""From EngineConfig to a model that runs.

Knows: which class answers to which name, device and dtype. Must not know: blocks, batches, requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from inference.config import EngineConfig
from inference.execution.models.decoder_config import is_native, read_config, read_raw
from inference.execution.models.errors import ModelError
from inference.execution.models.llama import LlamaModel
from inference.execution.models.prepare import SCRIPTED, model_name, prepare_model
from inference.execution.models.protocol import Model
from inference.execution.models.weights import WeightFolder

__all__ = ["LoadedModel", "ModelError", "load_model"]

log = logging.getLogger("batchscope.engine")

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16"}
BFLOAT16_CAPABILITY = 8  # of a CUDA device: Ampere


@dataclass(frozen=True, slots=True)
class LoadedModel:
    model: Model
    tokenizer_folder: Path
    name: str
    dtype: str
    device: str


def load_model(config: EngineConfig, progress: Callable[[str], None] | None = None) -> LoadedModel:
    """Fetch and convert where that is still to be done, then load. Raises ModelError with one sentence."""
    folder = prepare_model(config.model, config.model_cache, progress)
    name = model_name(config.model)
    if config.model.startswith(SCRIPTED):
        return LoadedModel(_scripted(config.model.removeprefix(SCRIPTED), folder), folder, name, "float32", "cpu")
    device = _device(config.device)
    dtype = _dtype(config.dtype, device)
    _sum_in_float32()
    where = torch.device(device)
    if is_native(read_raw(folder)):
        model = _native(folder, DTYPES[dtype], where, config.max_model_len)
    else:
        from inference.execution.models.foreign import load_foreign

        model = load_foreign(folder, DTYPES[dtype], where, config.max_model_len)
    return LoadedModel(model, folder, name, dtype, device)


def _native(folder: Path, dtype: torch.dtype, device: torch.device, max_model_len: int | None) -> Model:
    decoder = read_config(folder)
    if max_model_len is not None and max_model_len > decoder.max_position_embeddings:
        limit = decoder.max_position_embeddings
        raise ModelError(f"max_model_len is {max_model_len}, and the model was made for {limit} positions.")
    if max_model_len is not None and max_model_len > decoder.longest:
        raise ModelError(
            f"max_model_len is {max_model_len}, and the model's attention slides over {decoder.longest} positions, "
            f"which is not supported; set max_model_len to {decoder.longest} or less."
        )
    if max_model_len is None and decoder.longest < decoder.max_position_embeddings:
        log.warning(
            "max_model_len_cut: max_model_len is %d of the model's %d positions: its attention slides, which is not "
            "supported.",
            decoder.longest,
            decoder.max_position_embeddings,
        )
    weights = WeightFolder(folder, dtype, device)
    return LlamaModel(decoder, weights, dtype, device, max_model_len or decoder.longest)


def _scripted(file: str, folder: Path) -> Model:
    from inference.execution.models.scripted import load_scripted
    from inference.text.tokenizer import load_tokenizer

    return load_scripted(Path(file).expanduser(), load_tokenizer(folder))


def _device(device: str) -> str:
    there = torch.cuda.is_available()
    if device == "cuda" and not there:
        raise ModelError("device is cuda, and PyTorch sees no CUDA device here; set it to cpu or auto.")
    return ("cuda" if there else "cpu") if device == "auto" else device


def _dtype(dtype: str, device: str) -> str:
    """auto: bfloat16 where the hardware multiplies it, else float16 on a GPU and float32 on a CPU."""
    if device == "cpu" and dtype == "float16":
        raise ModelError("dtype is float16, which is for GPUs only; on a CPU set it to auto, bfloat16 or float32.")
    if dtype != "auto":
        return dtype
    if device == "cuda":
        return "bfloat16" if torch.cuda.get_device_capability()[0] >= BFLOAT16_CAPABILITY else "float16"
    return "bfloat16" if BFLOAT16_FLAGS & cpu_flags() else "float32"


def _sum_in_float32() -> None:
    """cuBLAS may otherwise round partial sums of a product to its inputs' dtype, or float32 inputs to fewer bits."""
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = False
    matmul.allow_bf16_reduced_precision_reduction = False
    matmul.allow_fp16_reduced_precision_reduction = False


def cpu_flags(path: Path = Path("/proc/cpuinfo")) -> set[str]:
    """Features of the CPU as Linux names them on x86; empty elsewhere."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set())
