"""The plan of one iteration, as the scheduler makes it and the batch builder and the ledger read it.

Knows: requests and token counts. Must not know: torch, how a plan is made or run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from inference.scheduling.cost_model import Load
from inference.scheduling.ledger import Row
from inference.scheduling.pace import PrefillRoom
from inference.scheduling.request import Request, WaitReason


class ScheduledRow(NamedTuple):
    """One request's part in the iteration: positions start..start + num_tokens - 1 are computed.

    drafts: what the last positions are given in place of tokens that are not known yet; they want logits, too.
    """

    request: Request
    start: int
    num_tokens: int
    samples: bool  # its last known token is computed, so the next one is sampled
    drafts: tuple[int, ...] = ()

    @property
    def wanted(self) -> int:
        """Of its positions, the last ones, how many need logits."""
        return self.samples + len(self.drafts)


@dataclass(slots=True)
class Schedule:
    """rows: those who ran before by rank, then those who joined.  promised: blocks that they will need soon and do not
    hold yet.
    prefill_room: what may be spent on prompts beside decodes; None: all of the budget.
    head, blocked: the first in line that could not join, and why; None where nobody waits for more than the user's cap.
    joined: those of them who did.
    padding: positions that a padded batch would have added to the shorter prompts of the batch that began.
    broken: requests that could not even be looked at, since something in them raises."""

    rows: list[ScheduledRow] = field(default_factory=list)
    joined: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    broken: list[Request] = field(default_factory=list)
    head: Request | None = None
    blocked: tuple[WaitReason, str] | None = None
    num_tokens: int = 0
    promised: int = 0
    prefill_room: PrefillRoom | None = None
    padding: int = 0

    def load(self) -> Load:
        load = Load()
        for row in self.rows:
            load = load.with_span(row.start, row.num_tokens, row.wanted)
        return load

    def ledger_rows(self) -> tuple[Row, ...]:
        """Before the commit, since a request that ends there loses its seat and its blocks."""
        return tuple(
            Row(
                request.request_id,
                request.seat,
                "prefill" if request.in_prefill else "decode",
                num_tokens,
                start + num_tokens,
                len(request.block_table),
                len(drafts),
            )
            for request, start, num_tokens, _, drafts in self.rows
        )
