"""Settings of the engine and sampling parameters of a request: plain data and their checks.

Knows: names, ranges and defaults. Must not know: torch, the web, where a value came from (environment, JSON, Python).
The web process imports this module, so nothing heavy may be imported here.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any

MAX_TOKENS_LIMIT = 1 << 20
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 256
MAX_TOKEN_ID = 1 << 31
SEED_LIMIT = 1 << 63


class ParameterError(ValueError):
    """A setting or sampling parameter is wrong. The message says which, what it was, and what is allowed."""


class RequestRefused(ValueError):
    """A request that can never run. `code` is one of the contract's error codes; the message has true numbers."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is sampled and when it stops. Field names are those of the `params` message object.

    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1 mean "off". `seed` None lets the caller of the engine choose
    one; with a seed, token number i of a request depends on (seed, i) and the logits alone, never on its batch-mates.
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

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))
        if self.min_tokens > self.max_tokens:
            raise ParameterError(f"min_tokens is {self.min_tokens}, more than max_tokens, which is {self.max_tokens}")

    @classmethod
    def from_mapping(cls, values: dict[str, Any]) -> SamplingParams:
        """Build from a `params` object. Raises ParameterError for an unknown name or a value out of range."""
        known = {f.name for f in fields(cls)}
        for name in values:
            if name in NOT_YET:
                raise ParameterError(f"{name} is not supported by this version")
            if name not in known:
                raise ParameterError(f"{name!r} is not a sampling parameter; there are: {', '.join(sorted(known))}")
        return cls(**values)

    def to_mapping(self) -> dict[str, Any]:
        """The same as a JSON-ready dict, lists in place of tuples."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


# Names of the contract that a later version will honour. Refused, since an ignored parameter is a wrong answer.
NOT_YET = frozenset(
    ("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "logprobs", "n", "priority",
     "response_format")
)  # fmt: skip


def _integer(low: int, high: int):
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ParameterError(f"{name} must be a whole number, not {_shown(value)}")
        if not low <= value <= high:
            raise ParameterError(f"{name} is {value}; it must be from {low} to {high}")
        return value

    return check


def _number(low: float, high: float):
    def check(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ParameterError(f"{name} must be a number, not {_shown(value)}")
        if not math.isfinite(value) or not low <= value <= high:
            raise ParameterError(f"{name} is {value}; it must be from {low:g} to {high:g}")
        return float(value)

    return check


def _seed(name: str, value: Any) -> int | None:
    return None if value is None else _integer(0, SEED_LIMIT - 1)(name, value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ParameterError(f"{name} must be true or false, not {_shown(value)}")
    return value


def _stop_strings(name: str, value: Any) -> tuple[str, ...]:
    items = (value,) if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(s, str) for s in items):
        raise ParameterError(f"{name} must be a string or a list of strings, not {_shown(value)}")
    if len(items) > MAX_STOP_STRINGS:
        raise ParameterError(f"{name} has {len(items)} strings; at most {MAX_STOP_STRINGS} are allowed")
    for item in items:
        if not 1 <= len(item) <= MAX_STOP_LENGTH:
            raise ParameterError(f"a {name} string has {len(item)} characters; it must have 1 to {MAX_STOP_LENGTH}")
    return tuple(items)


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)) or len(value) > 64:
        raise ParameterError(f"{name} must be a list of at most 64 token ids, not {_shown(value)}")
    return tuple(_integer(0, MAX_TOKEN_ID - 1)(name, item) for item in value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


_CHECKS = {
    "max_tokens": _integer(1, MAX_TOKENS_LIMIT),
    "min_tokens": _integer(0, MAX_TOKENS_LIMIT),
    "temperature": _number(0.0, 100.0),
    "top_p": _number(0.0, 1.0),
    "top_k": _integer(0, MAX_TOKEN_ID),
    "min_p": _number(0.0, 1.0),
    "seed": _seed,
    "stop": _stop_strings,
    "stop_token_ids": _token_ids,
    "ignore_eos": _flag,
}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything an engine is started with. Each field is also the setting BATCHSCOPE_<FIELD IN UPPER CASE>.

    model: "smollm2" (the default model, fetched by `manage.py fetchmodel`), a folder with config.json and safetensors,
        a .gguf file, or "scripted:FILE.json".
    device: "auto" (cuda where there is one), "cpu", "cuda".  dtype: "auto", "float32", "bfloat16".
    block_size: positions a KV block holds.  kv_blocks: blocks in the pool; None lets kv_memory decide.
    kv_memory: bytes for the pool where kv_blocks is None.
    max_num_seqs: seats, i.e. requests in one iteration.  max_num_batched_tokens: the token budget of one iteration.
    prefill_chunk: tokens of one prompt computed in one iteration at most; None: as many as the budget leaves.
    max_model_len: prompt + answer at most; None takes the model's own limit.
    """

    model: str = "smollm2"
    device: str = "auto"
    dtype: str = "auto"
    block_size: int = 16
    kv_blocks: int | None = None
    kv_memory: int = 1 << 30
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    prefill_chunk: int | None = None
    max_model_len: int | None = None
    policy: str = "continuous"
    model_cache: str = field(default="")  # folder for converted models; "" means <user cache>/batchscope

    def __post_init__(self) -> None:
        _choice("device", self.device, ("auto", "cpu", "cuda"))
        _choice("dtype", self.dtype, ("auto", "float32", "bfloat16"))
        _choice("policy", self.policy, ("continuous",))
        _integer(1, 256)("block_size", self.block_size)
        _integer(1, 65536)("max_num_seqs", self.max_num_seqs)
        _integer(1, 1 << 20)("max_num_batched_tokens", self.max_num_batched_tokens)
        _integer(1 << 10, 1 << 50)("kv_memory", self.kv_memory)
        if self.kv_blocks is not None:
            _integer(1, 1 << 30)("kv_blocks", self.kv_blocks)
        if self.prefill_chunk is not None:
            _integer(1, 1 << 20)("prefill_chunk", self.prefill_chunk)
        if self.max_model_len is not None:
            _integer(2, 1 << 30)("max_model_len", self.max_model_len)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ParameterError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, fewer than max_num_seqs, which is "
                f"{self.max_num_seqs}: each running request needs at least one token of the budget"
            )


def _choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ParameterError(f"{name} is {_shown(value)}; it must be one of: {', '.join(allowed)}")
