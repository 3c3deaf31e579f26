"""From a model folder to a model of transformers, or a sentence that says why not.

Knows: how transformers loads, what a folder may not hold. Must not know: paged attention.
No code from a folder is run and nothing is unpickled: weights come from safetensors, classes from transformers alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from inference.execution.models.decoder_config import read_raw
from inference.execution.models.errors import ModelError
from inference.execution.models.shards import weight_files


def load_pretrained(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """A transformers.PreTrainedModel with its eager attention, in evaluation mode. Raises ModelError."""
    from transformers import AutoModelForCausalLM

    config = _read_config(folder)
    weight_files(folder)  # says what is missing, or why it is not read
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
        model = model.to(device).eval()
    except Exception as error:
        raise ModelError(f"transformers can't load the model of {folder}: {first_line(error)}") from error
    if missing := sorted(info["missing_keys"]):
        raise ModelError(f"the weights of {folder} lack {len(missing)} tensors, such as {missing[0]}.")
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars, log lines and warnings of transformers: what matters is said by a ModelError."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def first_line(error: Exception) -> str:
    """An error in one sentence, with its kind where the text alone says too little."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else "no reason given"
    return (text if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {text}").rstrip(".:") + "."


def _read_config(folder: Path) -> Any:
    """transformers' configuration of a plain text decoder."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    raw = read_raw(folder)
    kind = raw.get("model_type")
    if kind not in CONFIG_MAPPING:
        if "auto_map" in raw:
            raise ModelError(f"the model of {folder} brings its own code, and code from model folders is never run.")
        raise ModelError(f"config.json says model_type is {kind!r}, which this version of transformers does not know.")
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        raise ModelError(f"transformers can't read {folder / 'config.json'}: {first_line(error)}") from error
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{kind} models have an encoder; only text decoders are supported.")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(f"{kind} models don't write text; only text decoders are supported.")
    if config.get_text_config() is not config:
        raise ModelError(f"{kind} models take more than text; only text decoders are supported.")
    return config
