"""An iteration under way: what was launched, what came back of it, what is still to be told.

Knows: which parts an iteration has, and their order. Must not know: how it is planned, computed or told.

A device that computes on its own leaves the host free while it does. So an iteration has three acts, and the engine
launches the next one before the last act of this one (as SGLang's and vLLM's overlapped schedulers do):
    launch   plan it, build its batch, start the forward pass
    land     wait for the logits, draw the tokens; whoever ends by ids or length gives back seat and blocks
    tell     text, deltas, ends, the ledger's record: all that no later iteration needs to know
Where the pass is over when it comes back, the three follow one another.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from inference.draws import Draw
from inference.execution.sampler import SampleRow
from inference.live import LiveRequest
from inference.scheduling.cost_model import Load
from inference.scheduling.ledger import BlockChange, Budget, IterationRecord, KVUse
from inference.scheduling.plan import Schedule
from inference.scheduling.request import RequestState
from inference.step import Outcome, Phases, Planned


class Word(NamedTuple):
    """To be told of a request: its next token's text, and, where it ended with that, its end: when, in which seat."""

    live: LiveRequest
    is_last: bool = False
    ended_at: float = 0.0
    seat: int | None = None


@dataclass(slots=True)
class Flight:
    """n: its number.  load: what is computed.  draws, asked: who samples, and what the sampler is asked for the first
    token of each.  logits: None where nothing was computed.  kv, blocks: the pool's state when it had landed, and what
    had changed in it since the iteration before.  untold: in order.  failed: whose text could not be made."""

    plan: Schedule
    planned: Planned
    phases: Phases
    outcome: Outcome
    n: int = 0
    load: Load = field(default_factory=Load)
    draws: list[Draw] = field(default_factory=list)
    asked: list[SampleRow | None] = field(default_factory=list)
    logits: torch.Tensor | None = None
    kv: KVUse = field(default_factory=lambda: KVUse(0, 0, 0, 0))
    blocks: tuple[BlockChange, ...] = ()
    untold: deque[Word] = field(default_factory=deque)
    failed: list[LiveRequest] = field(default_factory=list)

    def ask(self, draws: list[Draw]) -> None:
        self.draws, self.asked = draws, [draw.live.sample_row() for draw in draws]

    def drop_departed(self) -> None:
        """Requests that were cancelled or failed while it was under way take no part in its end: what was computed for
        them is nobody's. Their blocks may be others' by now, but not before the device is done with this pass."""
        self.plan.rows = [row for row in self.plan.rows if row.request.state is RequestState.RUNNING]
        staying = [draw.row.request.state is RequestState.RUNNING for draw in self.draws]
        if not all(staying):
            self.asked = [asked for asked, stays in zip(self.asked, staying, strict=True) if stays]
            self.draws = [draw for draw, stays in zip(self.draws, staying, strict=True) if stays]

    def record(self, epoch: int) -> IterationRecord:
        """What the ledger keeps of it, once all is told."""
        plan, planned, outcome, phases = self.plan, self.planned, self.outcome, self.phases
        return IterationRecord(
            n=self.n,
            epoch=epoch,
            started_at=phases.started_at,
            t0=phases.t0,
            **phases.durations,
            policy=planned.policy,
            rows=planned.with_accepted(outcome.accepted),
            waiting=planned.waiting,
            waiting_total=planned.waiting_total,
            preempted=tuple(request.request_id for request in plan.preempted),
            finished=tuple(outcome.finished),
            kv=self.kv,
            budget=Budget(plan.num_tokens, planned.budget),
            seats=planned.seats,
            idle=planned.idle,
            padding=plan.padding,
            blocks=self.blocks,
        )


def last_word(live: LiveRequest, seat: int | None) -> Word:
    """Of a request that ends now."""
    return Word(live, True, time.time(), seat)
