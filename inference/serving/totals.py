"""An engine's running totals, made of what its steps put out: latencies, iterations, preemptions, cache hits.

Knows: iteration records and events on their way out. Must not know: the broker, the engine, who reads totals. All of it
runs in the broker thread. What must equal the logs and the rows is not counted here, where it could be lost when an
engine dies between an answer's last word and its count: tokens count as their events are written (scripts.py), the
end of a request where its row gets its final state.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager

from inference.scheduling.ledger import IterationRecord
from inference.serving.logs import Outgoing
from inference.serving.messages import Delta, Finish
from inference.serving.tally import Tally

log = logging.getLogger("batchscope.engine")

COUNTERS = (
    *("prompt_tokens_total", "generation_tokens_total", "num_preemptions_total"),
    *("prefix_cache_queries_total", "prefix_cache_hits_total"),
)


class EngineTotals(Tally):
    """Tell it of each request that is taken, and of each step once its outputs are out."""

    def __init__(self) -> None:
        super().__init__()
        self._unseen: dict[str, int] = {}  # prompt tokens of those that were in no iteration yet
        self.wordless: dict[str, int] = {}  # prompt tokens of those whose log has no event yet
        self._came: dict[str, float] = {}  # Unix seconds, of the same
        self._newest: dict[str, float] = {}  # Unix seconds of each answer's newest delta, save of those told last
        self._told: list[str] = []  # whose deltas the newest step brought
        self._told_at = 0.0
        self.is_due = False  # something ended: do not wait for the next beat
        self._broken = False

    def started(self) -> None:
        """This process came to be ready. Counters of what is yet to happen are shown as 0, not as missing."""
        self.add("engine_starts_total")
        for name in COUNTERS:
            self.add(name, n=0)

    def taken(self, request_id: str, prompt_tokens: int, submitted_at: float, deltas: int) -> None:
        """The engine has it from now on. submitted_at: Unix seconds, or 0.  deltas: that its log has already."""
        self._drop(request_id)
        self._unseen[request_id] = prompt_tokens
        if not deltas:
            self.wordless[request_id], self._came[request_id] = prompt_tokens, submitted_at

    def forget(self) -> None:
        """The broker lost its state, and nobody's claim holds."""
        self._told = []
        for known in (self._unseen, self.wordless, self._came, self._newest):
            known.clear()

    def iteration(self, record: IterationRecord) -> None:
        """One that has come to its end. Told before its outputs go out: whoever has the end of an answer finds its
        prefix hits counted."""
        with self._guarded():
            self._iteration(record)

    def wrote(self, items: Sequence[Outgoing], refused: Collection[str] = ()) -> None:
        """One step's outputs, which are out. refused: claims, by token, that held no more: what was to be written under
        them does not count."""
        with self._guarded():
            self._events(self._valid(items, refused) if refused else items)

    @contextmanager
    def _guarded(self) -> Generator[None]:
        try:
            yield
        except Exception:  # outputs go the same way, and they matter more
            if not self._broken:
                log.exception("totals_failed: counts of this process are wrong from here on")
            self._broken = True

    def _valid(self, items: Sequence[Outgoing], refused: Collection[str]) -> list[Outgoing]:
        valid = []
        for item in items:
            if item.claim.token in refused:
                self._drop(item.claim.request_id)
            else:
                valid.append(item)
        return valid

    def _iteration(self, record: IterationRecord) -> None:
        if record.preempted:
            self.add("num_preemptions_total", n=len(record.preempted))
        if not record.rows:
            return
        self.observe("iteration_tokens_total", record.budget.used)
        for phase in ("schedule", "forward", "sample", "commit"):
            self.observe("iteration_seconds", getattr(record, phase) / 1000, phase)
        if not self._unseen:
            return
        for row in record.rows:
            if row.kind == "prefill" and (tokens := self._unseen.pop(row.request_id, None)) is not None:
                self.add("prefix_cache_queries_total", n=tokens)
                self.add("prefix_cache_hits_total", n=min(tokens, row.context - row.tokens))

    def _events(self, items: Sequence[Outgoing]) -> None:
        told: list[str] = []
        ends: list[Finish] = []
        now = 0.0
        for item in items:
            event = item.event
            if isinstance(event, Delta):
                told.append(event.request_id)
                now = event.created_at
                if event.seq == 1:
                    self._first(event)
            else:
                ends.append(event)
        if told:
            self._gaps(told, now)
        for end in ends:
            self._end(end)

    def _first(self, delta: Delta) -> None:
        self.wordless.pop(delta.request_id, None)
        if submitted_at := self._came.pop(delta.request_id, 0.0):
            seconds = max(0.0, delta.created_at - submitted_at)
            self.observe("time_to_first_token_seconds", seconds)
            log.debug("first_token", extra={"request_id": delta.request_id, "ms": round(1000 * seconds, 1)})

    def _gaps(self, told: list[str], now: float) -> None:
        """Between a delta and the one before it. Nearly always a step brings deltas of the same answers as the step
        before, and then all gaps are one; only else each answer's newest delta is looked up."""
        if told == self._told:
            self.observe("inter_token_latency_seconds", max(0.0, now - self._told_at), n=len(told))
            self._told_at = now
            return
        self._remember()
        fresh = dict.fromkeys(told, now)
        for before, count in Counter(map(self._newest.get, fresh)).items():
            if before is not None:
                self.observe("inter_token_latency_seconds", max(0.0, now - before), n=count)
        if len(told) == len(fresh):
            self._told, self._told_at = told, now
        else:  # drafts that were right: nobody waits for the second delta of a step
            self.observe("inter_token_latency_seconds", 0.0, n=len(told) - len(fresh))
            self._newest.update(fresh)

    def _remember(self) -> None:
        """Whose deltas the newest step brought, one by one."""
        self._newest.update(dict.fromkeys(self._told, self._told_at))
        self._told = []

    def _end(self, finish: Finish) -> None:
        self._drop(finish.request_id)
        self.is_due = True
        log.debug("ended", extra={"request_id": finish.request_id, "reason": finish.finish_reason})

    def _drop(self, request_id: str) -> None:
        self._remember()
        for known in (self._unseen, self.wordless, self._came, self._newest):
            known.pop(request_id, None)
