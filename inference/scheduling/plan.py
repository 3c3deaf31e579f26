"""The plan of one iteration, as the scheduler makes it and the batch builder and the ledger read it.

Knows: requests and token counts. Must not know: torch, how a plan is made or run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from inference.scheduling.ledger import Row
from inference.scheduling.request import Request, WaitReason


class ScheduledRow(NamedTuple):
    """One request's part in the iteration: positions start..start + num_tokens - 1 are computed."""

    request: Request
    start: int
    num_tokens: int
    samples: bool  # its last known token is computed, so the next one is sampled


@dataclass(slots=True)
class Schedule:
    """rows: oldest request first.  promised: blocks that these requests will need soon and do not hold yet.
    blocked: why the head of the queue could not join; None where nobody waits."""

    rows: list[ScheduledRow] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    blocked: tuple[WaitReason, str] | None = None
    num_tokens: int = 0
    promised: int = 0

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
            )
            for request, start, num_tokens, _ in self.rows
        )
