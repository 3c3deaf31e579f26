"""One forward pass of a model of transformers that tells what its layers want of an attention function.

Knows: what models hand to attention functions and to mask functions. Must not know: the paged cache, what is done with
what was learned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

# Tensors that models hand to every attention function, and that change nothing: keys are rotated already.
IDLE_OPTIONS = {"position_ids", "cache_position", "input_ids"}


@dataclass(frozen=True, slots=True)
class LayerCall:
    """What one call of the attention function asks for.

    head_dim: the cache's, the larger of keys' and values'.  window: the last positions that are seen, None for all.
    problem: why it can't be done here, the end of a sentence that begins with "a layer"; None where it can.
    """

    kv_heads: int
    head_dim: int
    window: int | None = None
    problem: str | None = None


class Probe:
    """Notes the calls of one forward pass over `tokens` tokens, and answers with zeros: the result means nothing."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self.calls: list[LayerCall] = []

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: dict[str, Any],
    ) -> torch.Tensor:
        if not _fits(query, key, value, self._tokens):
            problem = "attends to other things than the tokens of the text"
        else:
            problem = _problem(module, mask, options)
        windows = [options.get("sliding_window"), None if mask is None else _window(mask)]
        window = min((width for width in windows if width), default=None)
        self.calls.append(LayerCall(key.shape[1], max(key.shape[-1], value.shape[-1]), window, problem))
        return value.new_zeros(1, query.shape[2], query.shape[1], value.shape[-1])


def probe_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    *_: Any,
    local_size: int | None = None,
    device: torch.device | str = "cpu",
    **__: Any,
) -> torch.Tensor:
    """A mask that says in each element how many positions are seen, so that each layer's tells its window: not all
    models name it to the attention function as well."""
    return torch.full((batch_size, 1, q_length, kv_length), float(local_size or math.inf), device=device)


def _window(mask: torch.Tensor) -> int | None:
    width = float(mask.flatten()[0])
    return int(width) if 0 < width < math.inf else None


def _fits(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, tokens: int) -> bool:
    """Whether it is attention of the tokens to each other, heads in groups."""
    if not query.dim() == key.dim() == value.dim() == 4 or query.shape[1] % key.shape[1]:
        return False
    same = query.shape[-1] == key.shape[-1] and key.shape[:3] == value.shape[:3]
    return same and all(x.shape[0] == 1 and x.shape[2] == tokens for x in (query, key))


def _problem(module: torch.nn.Module, mask: torch.Tensor | None, options: dict[str, Any]) -> str | None:
    causal = options.get("is_causal")
    if not (getattr(module, "is_causal", True) if causal is None else causal):
        return "attends to later tokens as well"
    if options.get("softcap"):
        return "caps its attention scores (softcap)"
    if options.get("s_aux") is not None or options.get("sinks") is not None:
        return "has attention sinks"
    if mask is not None and (mask != mask.flatten()[0]).any():
        return "adds something of its own to the attention mask"
    strange = [name for name, x in options.items() if isinstance(x, torch.Tensor) and name not in IDLE_OPTIONS]
    return f"hands {strange[0]} to its attention" if strange else None
