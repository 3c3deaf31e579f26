"""One request as the scheduler sees it.

Knows: ids, parameters, how far it is computed, its block table, its state. Must not know: torch, text, the broker.
There is no phase flag: `num_computed_tokens` chases `num_tokens` (after vLLM v1), and a request is in prefill while it
lags behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from inference.config import RequestRefused as RequestRefused
from inference.config import SamplingParams
from inference.scheduling.prefix import PrefixChain
from inference.scheduling.prompt_lookup import PromptLookup


class RequestState(StrEnum):
    WAITING = "waiting"  # not in the batch; holds no blocks (a preempted request is waiting again)
    RUNNING = "running"  # has a seat and blocks
    FINISHED = "finished"


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"
    EXPIRED = "expired"


class WaitReason(StrEnum):
    """Why a waiting request was not admitted in an iteration. A waiting request always has one."""

    NO_SEAT = "no_seat"
    NO_KV = "no_kv"
    NO_BUDGET = "no_budget"
    POLICY = "policy"
    BEHIND = "behind"
    USER_CAP = "user_cap"
    PAUSED = "paused"


@dataclass(slots=True, eq=False)
class Request:
    """State of one request. Its output is a pure function of (prompt_ids, params with a seed).

    `output_ids` may start non-empty: a request that is resumed after a worker died is the same request, further on.
    """

    request_id: str
    prompt_ids: Sequence[int]
    params: SamplingParams
    seed: int
    user: str = ""
    output_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    state: RequestState = RequestState.WAITING
    finish_reason: FinishReason | None = None
    num_preemptions: int = 0
    lost_at: int = 0  # tokens that it had computed when it was preempted
    num_cached_tokens: int = 0  # of the prompt, found in the prefix cache when it was first admitted
    seat: int = -1  # its row on the batch tape while it runs
    arrived_ms: float = 0.0  # of the engine's clock
    started_ms: float | None = None  # when it was first admitted
    ticket: int = 0  # its place in the order of arrival
    standing: int = 0  # the class that it was admitted with
    prefix: PrefixChain | None = None  # keys of its full blocks; None: they are not cached
    lookup: PromptLookup | None = None  # guesses at its next tokens; None: there were none so far

    @property
    def rank(self) -> tuple[int, int]:
        """The least goes first while it runs and loses its blocks last."""
        return -self.standing, self.ticket

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def in_prefill(self) -> bool:
        """Between iterations: more is left to compute than the newest token of the answer."""
        return self.num_computed_tokens < max(len(self.prompt_ids), self.num_tokens - 1)

    def tokens(self, start: int, end: int) -> list[int]:
        """Ids at positions start..end - 1 of prompt and answer."""
        prompt = len(self.prompt_ids)
        if start >= prompt:
            return self.output_ids[start - prompt : end - prompt]
        return [*self.prompt_ids[start:end], *self.output_ids[: max(0, end - prompt)]]

    @property
    def max_total_tokens(self) -> int:
        """Positions of KV it can come to need: the last token it produces is never fed back."""
        return len(self.prompt_ids) + self.params.max_tokens - 1
