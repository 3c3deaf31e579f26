"""What the web side and the engine's process say to each other through the broker: plain data and one codec.

Knows: field names and their JSON form. Must not know: torch, Django, Redis commands, sockets.
The messages of the browser and of programs are another matter (playground/sockets/protocol.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import orjson

from inference.checks import ParameterError
from inference.limits import NAMES, Limits, checked_values
from inference.scheduling.receipt import unrun_receipt, with_delivery


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

    put_back_at: of one that the broker had lost.  started_at, first_token_at: of a run that was lost with it, as far as
    the web heard of it.
    """

    request_id: str
    params: dict[str, Any]
    messages: list[dict[str, str]] | None = None
    prompt: str | None = None
    prompt_ids: list[int] | None = None
    user: str = ""
    submitted_at: float = 0.0  # Unix seconds, as the following ones; 0: it is not known, or was not so
    put_back_at: float = 0.0
    started_at: float = 0.0
    first_token_at: float = 0.0


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
    started_at: float = 0.0  # of the first entry: Unix seconds, when the engine began with the request


@dataclass(frozen=True, slots=True)
class Queued(Message):
    """Where a request stands that waits: news for whoever follows it, and no entry of its log.

    position: how many are before it; beyond the first hundred in line, in whole hundreds.  reason: of not being in the
    newest iteration.  eta_ms: until it runs, as far as that can be told.
    """

    request_id: str
    position: int
    reason: str
    eta_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Finish(Message):
    """The last entry of a request's log. `seq` is one more than the last delta's.

    `token_ids` are the ids since the last delta (an EOS, a stop string's tokens). Text still held back at the end goes
    out as a delta before this. `error_code` and `error_message` are set when finish_reason is "error".
    `error_message` also says which limit an expired request met.  `logprobs`: as a delta's, of these token_ids.
    `receipt`: where the time went, in ms (see inference/scheduling/receipt.py); the engine's, until the web side has
    put the last frame on its way.  finished_at: when the engine had committed its last token.
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

    def handed_over(self, at: float, since: float = 0.0, ttft: float | None = None) -> Finish:
        """The same, whose last frame goes out at `at`. since: when the request came; of one that no engine had, all of
        its time was waiting. ttft: ms until its first words had gone out, if that is known: the engine knows only when
        it had them. Moments are Unix seconds."""
        receipt = self.receipt or (unrun_receipt(1000 * max(0.0, self.finished_at - since)) if since else {})
        if ttft is not None and "details" in receipt:
            receipt = {**receipt, "details": {**receipt["details"], "ttft": round(ttft, 3)}}
        ms = 1000 * (at - self.finished_at) if self.finished_at else 0.0
        return replace(self, receipt=with_delivery(receipt, ms))


@dataclass(frozen=True, slots=True)
class Control(Message):
    """What staff asks of the engine of that name: one of `inference.limits.ACTIONS`, and what it needs.

    by: who asks, for the log.
    """

    engine: str
    action: str
    ms: float | None = None
    policy: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_blocks: int | None = None
    by: str = ""

    @property
    def values(self) -> dict[str, Any]:
        """What was given for the action."""
        names = ("ms", "policy", *NAMES)
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def check(self, settings: dict[str, Any]) -> None:
        """Against what the engine's status says of it. Raises ParameterError. The engine checks again, when it comes to
        it, and knows more: who is there."""
        given = checked_values(self.action, self.values)
        if self.action == "set":
            try:
                now, most = Limits.of(settings), Limits.of(settings["most"])
            except KeyError:
                raise ParameterError("this engine has no limits that can be changed while it runs") from None
            now.changed(most, given)


@dataclass(frozen=True, slots=True)
class EngineStatus(Message):
    """Heartbeat of an engine process, renewed twice a second; the key it lives under expires by itself.

    state: "loading", "ready", "failed".  progress_at: Unix seconds of the last finished iteration, or when the loop
    that makes them last said that there is none to make: idle, a batch that fills, paused, slow.
    settings: those in force; `most` among them has the limits that the engine was started with.
    paused, slow_ms: see `inference.controls`.
    epoch: of the process; 0 until the broker has given it out. Unix seconds of its start or a little more: it rises at
    each start of an engine of this name, also where two follow within a second or the clock went back.
    draining: it takes no new requests any more, and leaves once it has none.
    answered: controls that it has carried out or refused.  refused: the last one, if that was refused: `text`, a
    sentence for people, `at`, Unix seconds, and `action`.
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
    costs: dict[str, float] = field(
        default_factory=dict
    )  # ms: fixed, token, read, sample; how far off; iterations seen
    epoch: int = 0
    paused: bool = False
    slow_ms: float = 0.0
    answered: int = 0
    refused: dict[str, Any] | None = None
    draining: bool = False
