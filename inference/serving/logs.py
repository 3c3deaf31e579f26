"""A request's output log as data: claims, events, and the log itself as read from the broker.

Knows: the kinds of log entries. Must not know: Redis commands, who reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from inference.scheduling.receipt import Past
from inference.serving.lost import Lost
from inference.serving.messages import Delta, Finish, Queued

Event = Delta | Finish
News = Event | Queued  # what the feed has


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to write a request's log, until somebody claims it anew. `token` names this claim and no other."""

    request_id: str
    epoch: int
    token: str


@dataclass(frozen=True, slots=True)
class ClaimResult:
    claim: Claim
    attempts: int  # this one included
    cancelled: bool
    log: Log


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An event on its way into the log, with the claim under which it may be written."""

    claim: Claim
    event: Event


@dataclass(slots=True)
class Log:
    """A request's log as read from the broker. `exists` is False where the broker has (or has kept) none."""

    exists: bool = False
    claims: int = 0  # how many there were; the answer's attempts
    deltas: list[Delta] = field(default_factory=list)
    finish: Finish | None = None
    claimed_at: float = 0.0  # Unix seconds, of the last claim
    gaps: float = 0.0  # seconds between entries of one engine and the next one's

    @property
    def next_seq(self) -> int:
        return self.deltas[-1].seq + 1 if self.deltas else 1

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def token_ids(self) -> list[int]:
        """All ids of the answer so far, those of the finish left out."""
        return [token_id for delta in self.deltas for token_id in delta.token_ids]

    def past(self, submitted_at: float, now: float, lost: Lost | None = None) -> Past | None:
        """Where a request's time went before `now`, all Unix seconds; None where no engine had it. Who waited for whom
        is not known any more: from its first token to its last one all counts as its own. lost: a run of which the log
        does not tell."""
        deltas = self.deltas
        last = deltas[-1].created_at if deltas else self.claimed_at
        if not last:
            return None if lost is None else lost.past(submitted_at, now)
        first = deltas[0].created_at if deltas else last
        started = min(first, deltas[0].started_at or first) if deltas else last
        since = min(submitted_at or started, started)
        past = Past(
            earlier=1000 * (started - since),
            prefill=1000 * (first - started),
            decode=1000 * max(0.0, last - first - self.gaps),
            stalled=1000 * (self.gaps + max(0.0, now - last)),
            ttft=1000 * (first - since) if deltas else None,
        )
        return past if lost is None else lost.before(past, since)

    @classmethod
    def of(cls, entries: Iterable[tuple[bytes, Sequence[bytes]]]) -> Log:
        """From entries as a script returns them: (id, [name, value, ...])."""
        log = cls()
        wrote = b""
        for entry_id, fields in entries:
            log.exists = True
            kind, value = fields[0], fields[1]
            if kind == b"delta":
                delta, epoch = Delta.decode(value), entry_id.partition(b"-")[0]
                if log.deltas and epoch != wrote:
                    log.gaps += max(0.0, delta.created_at - log.deltas[-1].created_at)
                wrote = epoch
                log.deltas.append(delta)
            elif kind == b"finish":
                log.finish = Finish.decode(value)
            elif kind == b"claim":
                log.claims += 1
                log.claimed_at = float(fields[5]) if len(fields) > 5 else 0.0
        return log


def decode_events(data: bytes) -> list[News]:
    """The events of one feed entry."""
    return [_kind(item).of(item) for item in orjson.loads(data)]


def _kind(item: dict[str, Any]) -> type[News]:
    if "finish_reason" in item:
        return Finish
    return Queued if "position" in item else Delta
