"""A request's output log as data: claims, events, and the log itself as read from the broker.

Knows: the kinds of log entries. Must not know: Redis commands, who reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import orjson

from inference.serving.messages import Delta, Finish

Event = Delta | Finish


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

    @classmethod
    def of(cls, entries: Iterable[tuple[bytes, Sequence[bytes]]]) -> Log:
        """From entries as a script returns them: (id, [name, value, ...])."""
        log = cls()
        for _, fields in entries:
            log.exists = True
            kind, value = fields[0], fields[1]
            if kind == b"delta":
                log.deltas.append(Delta.decode(value))
            elif kind == b"finish":
                log.finish = Finish.decode(value)
            elif kind == b"claim":
                log.claims += 1
        return log


def decode_events(data: bytes) -> list[Event]:
    """The events of one feed entry."""
    return [Finish.of(item) if "finish_reason" in item else Delta.of(item) for item in orjson.loads(data)]
