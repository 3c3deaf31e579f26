"""How long a sequence of a model of transformers may grow here, and why not longer.

Knows: which settings of a configuration change what attention means beyond a length. Must not know: tensors, batches.
Our attention sees all earlier positions, and a batch holds sequences of all lengths. Up to a window's width a window
hides nothing, and up to the length at which a model changes its ways it has not changed them: there such models run
right, so they are run up to there and refused beyond.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from inference.execution.models.errors import ModelError

log = logging.getLogger("batchscope.engine")


def model_len(config: Any, windows: Iterable[int], asked: int | None) -> int:
    """Positions of the longest sequence: `asked`, or as many as can be run right.

    config: transformers' configuration.  windows: what the layers say they see.
    Raises ModelError where fewer positions than asked can be run, or where none are named at all.
    """
    bounds = list(_bounds(config, windows))
    named = getattr(config, "max_position_embeddings", None)
    if isinstance(named, int) and named > 0:
        bounds.append((named, "it was made for so many"))
    if not bounds and asked is None:
        raise ModelError("config.json does not say how many positions the model was made for: set max_model_len.")
    limit, why = min(bounds, default=(asked or 0, ""))
    if asked is not None and asked > limit:
        raise ModelError(f"max_model_len is {asked}, and the model can be run up to {limit} positions: {why}.")
    if asked is None and isinstance(named, int) and limit < named:
        log.warning("max_model_len_cut: max_model_len is %d of the model's %d positions: %s.", limit, named, why)
    return asked or limit


def _bounds(config: Any, windows: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Pairs of a number of positions and the end of a sentence that says why there are not more."""
    for window in set(windows):
        yield window, "some of its layers see no more at once, and sliding windows are not supported"
    for name in ("index_topk", "attention_chunk_size"):
        if isinstance(size := getattr(config, name, None), int):
            yield size, f"its {name} lets no layer see more, and this is not supported"
    if getattr(config, "attn_temperature_tuning", False) and isinstance(size := getattr(config, "floor_scale", 0), int):
        yield size - 1, "beyond, its attention_temperature_tuning changes the scores, and this is not supported"
    for rope in _ropes(getattr(config, "rope_parameters", None)):
        original = rope.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        if rope.get("rope_type") == "longrope" and original:
            yield original, "beyond, its rotation (longrope) would depend on the other sequences of a batch"


def _ropes(parameters: Any) -> list[Mapping[str, Any]]:
    """One set of rotary parameters, or one for each kind of layer."""
    if not isinstance(parameters, Mapping):
        return []
    nested = [value for value in parameters.values() if isinstance(value, Mapping)]
    return nested or [parameters]
