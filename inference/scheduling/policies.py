"""Batching policies: who may join the batch, and when. Same model, same kernels; only this differs.

Knows: how many requests run and wait. Must not know: blocks, tokens, text.
"""

from __future__ import annotations

from typing import Protocol


class BatchingPolicy(Protocol):
    """Asked once an iteration, when running requests have been served and before any waiting one is looked at.

    What it does not close is still subject to seats, blocks and the token budget. A policy that waits for a time or a
    full batch keeps what it needs itself: its clock, whether the batch that runs was closed.
    """

    name: str

    def closed_because(self, running: int, waiting: int) -> str | None:
        """None: waiting requests may join this iteration. Else the reason, for people, with numbers."""
        ...


class ContinuousPolicy:
    """After Orca (OSDI 2022): the unit of scheduling is one iteration, so requests may join in every one."""

    name = "continuous"

    def closed_because(self, running: int, waiting: int) -> str | None:
        return None


POLICIES: dict[str, type[BatchingPolicy]] = {ContinuousPolicy.name: ContinuousPolicy}
