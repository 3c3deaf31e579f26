"""The ledger: one record per iteration, from which everything that explains anything is derived.

Knows: what happened in an iteration, in plain data. Must not know: torch, the broker, how it is drawn.
All durations are milliseconds from one monotonic clock; `started_at` (Unix seconds) is for people only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

BlockChange = tuple[int, int, int, str | None]  # block, references, 1 where it can be found again, one who holds it


@dataclass(frozen=True, slots=True)
class Row:
    """One request's part in an iteration. `seat` is its place on the batch tape, kept while it runs."""

    request_id: str
    seat: int
    kind: str  # "prefill" or "decode"
    tokens: int  # computed in this iteration
    context: int  # positions attended to, those of this iteration included
    blocks: int  # KV blocks held after it
    drafted: int = 0  # of `tokens`: guesses at the answer's next tokens
    accepted: int = 0  # of `drafted`: those that were right, so that the answer grew by one more than these


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that was not admitted, and why. `detail` is for people and has the numbers; `tokens`: of its prompt;
    `since`: when it came, by the clock of `t0`; null for one that has run before."""

    request_id: str
    reason: str  # a WaitReason
    detail: str
    tokens: int = 0
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    request_id: str
    reason: str  # a FinishReason
    seat: int | None  # None: it left while waiting


@dataclass(frozen=True, slots=True)
class KVUse:
    free: int
    cached: int
    used: int
    total: int


@dataclass(frozen=True, slots=True)
class Budget:
    used: int
    limit: int


@dataclass(frozen=True, slots=True)
class IterationRecord:
    n: int
    epoch: int  # of the engine process: rises at each restart, so (epoch, n) names an iteration for ever
    started_at: float
    t0: float  # ms, monotonic
    schedule: float
    forward: float
    sample: float
    commit: float
    policy: str
    rows: tuple[Row, ...]
    waiting: tuple[Waiting, ...]  # at most WAITING_SHOWN of them, in order
    waiting_total: int
    preempted: tuple[str, ...]
    finished: tuple[Finished, ...]
    kv: KVUse
    budget: Budget
    seats: int = 0  # seats there are (max_num_seqs)
    idle: tuple[int, ...] = ()  # seats of ended requests that their batch holds until its slowest ends
    padding: int = 0  # positions that a padded batch, beginning now, adds to its shorter prompts
    blocks: tuple[BlockChange, ...] = ()  # not as at the record before; see block_map.py

    def to_json(self) -> dict[str, Any]:
        """The record as JSON-ready data, as it goes to the scheduler feed."""
        return asdict(self)


WAITING_SHOWN = 100  # waiting requests listed in a record; `waiting_total` has the true number


@dataclass(slots=True)
class Ledger:
    """The newest `capacity` records, oldest first. One owner: the engine."""

    capacity: int = 4096
    records: deque[IterationRecord] = field(init=False)

    def __post_init__(self) -> None:
        self.records = deque(maxlen=self.capacity)

    def append(self, record: IterationRecord) -> None:
        self.records.append(record)

    def newest(self, count: int) -> Iterable[IterationRecord]:
        return list(self.records)[-count:]
