"""The batch builder, such that a row that raises fails alone.

Knows: that rows are independent of each other. Must not know: why a row is in the batch, what becomes of its request.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from inference.execution.batch import Batch
from inference.execution.batch_builder import BatchBuilder
from inference.scheduling.plan import ScheduledRow

log = logging.getLogger("batchscope.engine")


class IsolatedBuilder:
    """Builds as `BatchBuilder` does."""

    def __init__(self, builder: BatchBuilder) -> None:
        self._builder = builder

    def build(self, rows: Sequence[ScheduledRow]) -> tuple[Batch | None, list[ScheduledRow]]:
        """The batch of those rows that can be built, None if there are none; and the others."""
        try:
            return self._builder.build(rows), []
        except Exception as error:
            log.warning("batch_failed: %r; trying again row by row", error)
        broken = [row for row in rows if not self._can_build(row)]
        sound = [row for row in rows if row not in broken]
        return self._builder.build(sound) if sound else None, broken

    def _can_build(self, row: ScheduledRow) -> bool:
        try:
            self._builder.build([row])
        except Exception:
            log.exception("batch_failed: one request fails")
            return False
        return True
