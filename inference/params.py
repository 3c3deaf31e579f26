"""Sampling parameters of a request: plain data and their checks.

Knows: names, ranges and defaults. Must not know: torch, the model's vocabulary, the web, where a value came from.
The web process imports this module, so nothing heavy may be imported here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from inference.checks import (
    Check,
    ParameterError,
    above,
    flag,
    integer,
    number,
    optional,
    shown,
    strings,
    token_ids,
)

MAX_TOKENS_LIMIT = 1 << 20
MAX_TOKEN_ID = 1 << 31
SEED_LIMIT = 1 << 63
MAX_BIASED = 1024  # ids in logit_bias
MAX_LOGPROBS = 20  # most likely tokens beside the chosen one, as OpenAI's API has it
MAX_N = 16
MAX_FORMAT_BYTES = 64 * 1024
PRIORITIES = (-2, 2)
FORMAT_TYPES = ("text", "json_object", "json_schema", "regex")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is sampled and when it stops. Field names are those of the `params` message object.

    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1 mean "off". `seed` None lets the caller of the engine choose
    one; with a seed, token number i of a request depends on (seed, i) and the logits alone, never on its batch-mates.

    presence_penalty and frequency_penalty look at the answer so far, repetition_penalty (1 is off) at the prompt, too.
    logit_bias: pairs of token id and what is added to its logit; a mapping is taken as well.
    logprobs: None, or how many of the most likely tokens are reported beside each chosen one.
    n: answers to the same prompt; each is a request of its own (`siblings`).
    priority: -2 to 2, higher ones first; `priority_ageing` seconds of waiting are worth one step.
    response_format: {"type": "json_schema", "json_schema": {"schema": {...}}}, {"type": "json_object"} or
        {"type": "regex", "regex": "..."}; the answer is held to it.
    """

    max_tokens: int = 256
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    n: int = 1
    priority: int = 0
    response_format: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))
        if self.min_tokens > self.max_tokens:
            raise ParameterError(f"min_tokens is {self.min_tokens}, more than max_tokens, which is {self.max_tokens}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Build from a `params` object. Raises ParameterError for an unknown name or a value out of range."""
        known = {f.name for f in fields(cls)}
        for name in values:
            if name not in known:
                raise ParameterError(
                    f"{shown(name)} is not a sampling parameter; there are: {', '.join(sorted(known))}"
                )
        return cls(**values)

    def to_mapping(self) -> dict[str, Any]:
        """The same as a JSON-ready dict, lists in place of tuples."""
        values = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {**values, "logit_bias": {str(i): bias for i, bias in self.logit_bias}}

    @property
    def has_penalties(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)

    def siblings(self) -> list[SamplingParams]:
        """The n requests, each with n = 1, that this one stands for. The first has the seed; the others have seeds
        derived from it, so that the whole family is as reproducible as one."""
        first = replace(self, n=1)
        if self.seed is None:
            return [first] * self.n
        return [first, *(replace(first, seed=_derived_seed(self.seed, place)) for place in range(1, self.n))]


def _derived_seed(seed: int, place: int) -> int:
    digest = hashlib.blake2b(f"{seed} {place}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % SEED_LIMIT


def _logit_bias(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    """A mapping from ids, which JSON makes strings, or pairs. Sorted, so that equal biases are equal."""
    pairs = value.items() if isinstance(value, Mapping) else value
    if pairs is None:
        return ()
    if not isinstance(pairs, (list, tuple)) and not isinstance(value, Mapping):
        raise ParameterError(f"{name} must be an object from token ids to numbers, not {shown(value)}")
    if len(pairs) > MAX_BIASED:
        raise ParameterError(f"{name} has {len(pairs)} token ids; at most {MAX_BIASED} are allowed")
    result: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise ParameterError(f"{name} must be an object from token ids to numbers; it holds {shown(pair)}")
        token_id = int(pair[0]) if isinstance(pair[0], str) and _is_id(pair[0]) else pair[0]
        token_id = integer(0, MAX_TOKEN_ID - 1)(f"a token id of {name}", token_id)
        result[token_id] = number(-100.0, 100.0)(f"{name} of token id {token_id}", pair[1])
    return tuple(sorted(result.items()))


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 10


def _response_format(name: str, value: Any) -> dict[str, Any] | None:
    """The format in one shape, {"type": ..., "schema" or "regex": ...}, or None for plain text."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or value.get("type") not in FORMAT_TYPES:
        raise ParameterError(f"{name} must be an object with a type: {', '.join(FORMAT_TYPES)}; not {shown(value)}")
    kind = value["type"]
    if kind == "regex":
        regex = value.get("regex", value.get("pattern"))
        if not isinstance(regex, str) or not regex:
            raise ParameterError(f"{name} of type regex needs a regex, a string that is not empty")
        return _bounded(name, {"type": kind, "regex": regex})
    if kind == "json_schema":
        named = value.get("json_schema")
        schema = named.get("schema") if isinstance(named, Mapping) else value.get("schema")
        if not isinstance(schema, (Mapping, bool)):
            raise ParameterError(f'{name} of type json_schema needs {{"json_schema": {{"schema": {{...}}}}}}')
        return _bounded(name, {"type": kind, "schema": schema})
    return None if kind == "text" else {"type": kind}


def _bounded(name: str, value: dict[str, Any]) -> dict[str, Any]:
    """A copy that JSON made, and so plain data of a bounded size."""
    try:
        encoded = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise ParameterError(f"{name} must be plain JSON") from None
    if len(encoded) > MAX_FORMAT_BYTES:
        raise ParameterError(f"{name} has {len(encoded)} bytes; at most {MAX_FORMAT_BYTES} are allowed")
    return json.loads(encoded)


_CHECKS: dict[str, Check] = {
    "max_tokens": integer(1, MAX_TOKENS_LIMIT),
    "min_tokens": integer(0, MAX_TOKENS_LIMIT),
    "temperature": number(0.0, 100.0),
    "top_p": number(0.0, 1.0),
    "top_k": integer(0, MAX_TOKEN_ID),
    "min_p": number(0.0, 1.0),
    "seed": optional(integer(0, SEED_LIMIT - 1)),
    "stop": strings(16, 256),
    "stop_token_ids": token_ids(64, MAX_TOKEN_ID),
    "ignore_eos": flag,
    "presence_penalty": number(-2.0, 2.0),
    "frequency_penalty": number(-2.0, 2.0),
    "repetition_penalty": above(0.0, 10.0),
    "logit_bias": _logit_bias,
    "logprobs": optional(integer(0, MAX_LOGPROBS)),
    "n": integer(1, MAX_N),
    "priority": integer(*PRIORITIES),
    "response_format": _response_format,
}
