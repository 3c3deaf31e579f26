"""From a model's name to a folder that can be loaded: fetch, convert, or refuse.

Knows: the forms that EngineConfig.model can have. Must not know: torch, so that a set-up command can do this alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from inference.execution.models.errors import ModelError
from inference.execution.models.fetch import DEFAULT_NAME, fetch_default_model
from inference.execution.models.gguf import convert_gguf
from inference.execution.models.hub import fetch_from_hub, is_hub_id
from inference.execution.models.store import default_cache

DEFAULT_MODEL = "smollm2"
SCRIPTED = "scripted:"
FORMS = (
    f"{DEFAULT_MODEL}, a folder with config.json and safetensors, a .gguf file, the id of a repository on the Hugging "
    f"Face hub (ORGANISATION/NAME), or {SCRIPTED}FILE.json"
)


def prepare_model(model: str, model_cache: str = "", progress: Callable[[str], None] | None = None) -> Path:
    """Folder with config.json, safetensors and tokenizer files of `model`. A second call costs milliseconds.

    model: what EngineConfig.model allows; a scripted model gets the default model's folder, for its tokenizer.
    Raises ModelError with one sentence.
    """
    say = progress or _to_stderr
    cache = Path(model_cache).expanduser() if model_cache else default_cache()
    if model == DEFAULT_MODEL or model.startswith(SCRIPTED):
        return convert_gguf(fetch_default_model(cache, say), cache, say)
    path = Path(model).expanduser()
    if path.suffix == ".gguf":
        return convert_gguf(path, cache, say)
    if path.is_dir():  # before the hub: a folder of that name is what its owner means
        return path
    if path.is_file():
        raise ModelError(f"{path} is a file and no .gguf; a model is {FORMS}.")
    if is_hub_id(model):
        return fetch_from_hub(model, say)
    raise ModelError(f"there is no model {model!r}: it must be {FORMS}.")


def model_name(model: str) -> str:
    """What people and programs call it."""
    if model == DEFAULT_MODEL:
        return DEFAULT_NAME
    if is_hub_id(model) and not Path(model).exists():
        return model
    return Path(model.removeprefix(SCRIPTED)).expanduser().resolve().name.removesuffix(".gguf").removesuffix(".json")


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
