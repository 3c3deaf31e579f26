"""What comes out of one step of the engine.

Knows: text, ids and how a request ended. Must not know: torch, how outputs travel to a client.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from inference.scheduling.ledger import IterationRecord
from inference.scheduling.request import FinishReason
from inference.scheduling.token_logprobs import TokenLogprobs


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """Text that a token brought. seq counts a request's deltas from 1 without gaps; token_ids are all ids since the
    delta before, those whose text was held back included; logprobs, where asked for, has an entry for each of them.
    started_at: of the first delta, when the request began to run, Unix seconds."""

    request_id: str
    seq: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    started_at: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class RequestFinish:
    """The end of a request. seq is one more than its last delta's; token_ids are the ids after that delta.

    receipt: where the time went, in ms (see receipt.py).  Times are Unix seconds, 0 = never came to that.
    """

    request_id: str
    seq: int
    finish_reason: FinishReason
    token_ids: list[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    error_code: str = ""
    error_message: str = ""
    receipt: dict[str, Any] = field(default_factory=dict)
    started_at: float = 0.0
    first_token_at: float = 0.0
    finished_at: float = 0.0
    logprobs: list[TokenLogprobs] | None = None


@dataclass(frozen=True, slots=True)
class StepOutput:
    """One iteration's outputs. record is None where there was nothing to do."""

    deltas: list[TokenDelta]
    finishes: list[RequestFinish]
    record: IterationRecord | None


@dataclass(frozen=True, slots=True)
class Output:
    """A whole answer, as `Engine.generate` gives it. others: the further ones to the same prompt, where n > 1."""

    request_id: str
    token_ids: list[int]
    text: str
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int = 0
    error_code: str = ""
    error_message: str = ""
    receipt: dict[str, Any] = field(default_factory=dict)
    logprobs: list[TokenLogprobs] | None = None
    others: list[Output] = field(default_factory=list)

    @property
    def choices(self) -> list[Output]:
        """All n answers to the prompt, this one first."""
        return [self, *self.others]
