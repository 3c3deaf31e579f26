"""What the web side and the engine's process say to each other through the broker: plain data and one codec.

Knows: field names and their JSON form. Must not know: torch, Django, Redis commands, sockets.
The messages of the browser and of programs are another matter (playground/sockets/protocol.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import orjson


@dataclass(frozen=True, slots=True)
class Message:
    """Base of all: `encode` to compact JSON bytes, `decode` back. Unknown fields are ignored, for rolling upgrades."""

    def encode(self) -> bytes:
        return orjson.dumps(self)

    @classmethod
    def decode(cls, data: bytes | str) -> Self:
        return cls.of(orjson.loads(data))

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """From decoded JSON."""
        return cls(**{k: v for k, v in values.items() if k in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True)
class Submission(Message):
    """A request on its way to an engine. One of `messages` (chat), `prompt` (text), `prompt_ids` is given.

    `params` always has a seed: the web side chooses one, so that the request is a pure function from here on.
    """

    request_id: str
    params: dict[str, Any]
    messages: list[dict[str, str]] | None = None
    prompt: str | None = None
    prompt_ids: list[int] | None = None
    user: str = ""
    submitted_at: float = 0.0  # Unix seconds


@dataclass(frozen=True, slots=True)
class Delta(Message):
    """One entry of a request's output log: one token that brought text. `seq` counts from 1 without gaps.

    `token_ids` are all ids since the entry before (tokens whose text was held back are in the next entry), so the ids
    of all entries are the answer so far, and an engine can go on from them. One entry per text-bearing token makes
    `seq` a pure function of the answer: a request that is run again numbers its deltas the same.

    `logprobs`, where asked for, has for each of token_ids its token_id, token (the text of that id alone), logprob, and
    top: a list of the same three for the most likely tokens.
    """

    request_id: str
    seq: int
    text: str
    token_ids: list[int]
    iteration: int
    created_at: float = 0.0  # Unix seconds, when the engine committed it
    logprobs: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Finish(Message):
    """The last entry of a request's log. `seq` is one more than the last delta's.

    `token_ids` are the ids since the last delta (an EOS, a stop string's tokens). Text still held back at the end goes
    out as a delta before this. `error_code` and `error_message` are set when finish_reason is "error".
    `error_message` also says which limit an expired request met.  `logprobs`: as a delta's, of these token_ids.
    `receipt`: parts in ms; a first form: queue, prefill, decode, total.
    """

    request_id: str
    seq: int
    finish_reason: str
    token_ids: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    error_code: str = ""
    error_message: str = ""
    receipt: dict[str, Any] = field(default_factory=dict)
    iteration: int = 0
    started_at: float = 0.0  # Unix seconds; 0 = it never got that far
    first_token_at: float = 0.0
    finished_at: float = 0.0
    engine: str = ""
    logprobs: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class EngineStatus(Message):
    """Heartbeat of an engine process, renewed twice a second; the key it lives under expires by itself.

    state: "loading", "ready", "failed".  progress_at: Unix seconds of the last finished iteration, or of going idle.
    """

    name: str
    pid: int
    state: str
    busy: bool
    progress_at: float
    detail: str = ""  # for people: what it is loading, or why it failed
    model: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    running: int = 0
    waiting: int = 0
    kv: dict[str, int] = field(default_factory=dict)
    epoch: int = 0  # of the process: Unix seconds of its start, so it rises at each restart
