"""Which decoding requests get drafts in an iteration, and how many: speculation with what would be idle otherwise.

Knows: plans, blocks, guesses. Must not know: torch, how drafts are verified.
Few rows are computed in the time that one takes, since the weights are read once for all of them. Up to that many rows
there is room for drafts; beyond, and beside prompts, a draft would cost others time. A draft never costs anybody
blocks, either: it reaches no further than the blocks that its own request holds or is promised, and only where all
promises to those who run can be kept; what is not used is given back when the iteration was computed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from inference.scheduling.kv_manager import KVManager
from inference.scheduling.plan import Schedule, ScheduledRow
from inference.scheduling.prompt_lookup import PromptLookup

log = logging.getLogger("batchscope.engine")


@dataclass(frozen=True, slots=True)
class Drafting:
    """most: drafts of one request in an iteration; 0: none.  rows: tokens of an iteration with drafts in it."""

    most: int = 0
    rows: int = 8

    def extend(self, plan: Schedule, kv: KVManager, budget: int) -> None:
        """Put drafts into a plan in which everybody has a place already. Blocks for them are allocated."""
        left = min(self.rows, budget) - plan.num_tokens
        if not self.most or left <= 0 or any(row.request.in_prefill for row in plan.rows):
            return  # whoever waits for budget waits for these prompts, or for rows that there are not
        for place, row in enumerate(plan.rows):
            share = -(-left // (len(plan.rows) - place))  # whoever has no guess leaves it to the others
            drafts = self._drafts(row, share, plan, kv)
            if drafts:
                self._put(place, drafts, plan, kv)
                left -= len(drafts)

    def _drafts(self, row: ScheduledRow, share: int, plan: Schedule, kv: KVManager) -> list[int]:
        request = row.request
        room = min(share, kv.room_to_draft(request, plan.promised))
        if room <= 0:
            return []
        if request.lookup is None:
            request.lookup = PromptLookup(self.most)
        try:
            return request.lookup.guess(request.num_tokens, request.tokens, room)
        except Exception:
            log.exception("drafting_failed: one request gets no drafts")
            request.lookup.stop()
            return []

    def _put(self, place: int, drafts: list[int], plan: Schedule, kv: KVManager) -> None:
        row = plan.rows[place]
        held = len(row.request.block_table)
        kv.must_grow(row.request, row.num_tokens + len(drafts))
        plan.rows[place] = row._replace(num_tokens=row.num_tokens + len(drafts), drafts=tuple(drafts))
        plan.num_tokens += len(drafts)
        plan.promised -= len(row.request.block_table) - held
