"""What the broker thread asks of the step thread. One queue, in order; the step thread alone touches the engine.

Knows: the orders. Must not know: who carries them out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inference.config import SamplingParams
from inference.scheduling.receipt import Past
from inference.serving.logs import Claim, Log
from inference.serving.lost import Lost
from inference.serving.messages import Control

if TYPE_CHECKING:
    from inference.text.grammar import Grammar


@dataclass(frozen=True, slots=True)
class Add:
    """Run this request. `output_ids`: tokens that an earlier worker produced; `next_seq`: where its log goes on.

    submitted_at: Unix seconds, 0 where nobody knows.  grammar: of its response_format.  log: as it was claimed.
    lost: where the broker had lost it, and it was put back.
    """

    claim: Claim
    prompt_ids: Sequence[int]
    params: SamplingParams
    user: str
    output_ids: Sequence[int]
    next_seq: int
    submitted_at: float = 0.0
    grammar: Grammar | None = None
    log: Log = field(default_factory=Log)
    lost: Lost | None = None

    @property
    def age(self) -> float:
        """Seconds since it was submitted."""
        return max(0.0, time.time() - self.submitted_at) if self.submitted_at else 0.0

    @property
    def past(self) -> Past | None:
        """Where these went, if another engine had it."""
        return self.log.past(self.submitted_at, time.time(), self.lost)


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the request at the next iteration boundary, with a finish."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Drop:
    """The claim with this token holds no more: stop running it, say nothing."""

    token: str


@dataclass(frozen=True, slots=True)
class DropAll:
    """The broker lost its state: nothing that runs here can be written any more."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Say that what was asked for by a control can't be done: it came to nothing on its way already."""

    action: str
    text: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Take nothing new and go on with what there is. A Stop follows once that is over, or after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave the loop before the next step."""


Order = Add | Cancel | Control | Drain | Drop | DropAll | Refuse | Stop
