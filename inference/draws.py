"""Tokens that an iteration draws for one request: one, and one more for each draft that turns out right.

Knows: which of the iteration's logits are whose, drafts. Must not know: how a token is drawn or taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from inference.live import LiveRequest
from inference.scheduling.plan import ScheduledRow


@dataclass(slots=True)
class Draw:
    """place: of its next logits among those of the iteration.  accepted: drafts that were right so far."""

    live: LiveRequest
    row: ScheduledRow
    place: int
    accepted: int = 0

    def foretold(self, token_id: int) -> bool:
        """Whether this next token is what was drafted, so that the one after it can be drawn, too."""
        drafts = self.row.drafts
        return self.accepted < len(drafts) and drafts[self.accepted] == token_id

    def go_on(self) -> None:
        self.accepted += 1
        self.place += 1


def draws_of(rows: Iterable[ScheduledRow], live: Mapping[str, LiveRequest]) -> list[Draw]:
    """Of those rows that sample, in order."""
    draws, place = [], 0
    for row in rows:
        if row.samples:
            draws.append(Draw(live[row.request.request_id], row, place))
            place += row.wanted
    return draws


def logits_of(draws: Sequence[Draw], logits: torch.Tensor) -> torch.Tensor:
    """[len(draws), vocab], the next ones of each. They share memory with `logits` where they are all of it."""
    if len(draws) == len(logits):
        return logits
    return logits[[draw.place for draw in draws]]
