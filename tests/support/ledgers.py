"""Iteration records without an engine, with changes of blocks, and the state of the blocks after each."""

from __future__ import annotations

import random
from typing import Any

import orjson

from inference.scheduling.blocks import BlockPool
from inference.scheduling.ledger import Budget, Finished, IterationRecord, KVUse, Row, Waiting

TOTAL = 12
State = list[tuple[int, int, str | None]]  # references, cached and owner of each block


class Run:
    """One engine process's records; `states[n]` after iteration n, `states[0]` before the first."""

    def __init__(self, epoch: int, count: int, seed: int = 0, total: int = TOTAL) -> None:
        self.epoch, self._draw = epoch, random.Random(seed)
        self.states: list[State] = [[(0, 0, None)] * total]
        self.records: list[IterationRecord] = []
        self.more(count)

    def more(self, count: int) -> list[IterationRecord]:
        return [self._next() for _ in range(count)]

    @property
    def lines(self) -> list[bytes]:
        return [orjson.dumps(record) for record in self.records]

    def drawn(self, n: int) -> dict[str, Any]:
        """The state after iteration n as /scheduler/blocks/ gives it."""
        owners: list[str] = []
        blocks = []
        for references, cached, owner in self.states[n]:
            if owner is not None and owner not in owners:
                owners.append(owner)
            blocks.append([references, cached, -1 if owner is None else owners.index(owner)])
        return {"total": len(blocks), "blocks": blocks, "owners": owners}

    def _next(self) -> IterationRecord:
        state = list(self.states[-1])
        changes = []
        for block in sorted(self._draw.sample(range(len(state)), self._draw.randrange(4))):
            references = self._draw.choice([0, 0, 1, 1, 3])
            state[block] = (references, self._draw.randrange(2), f"r{block % 5}" if references else None)
            changes.append((block, *state[block]))
        self.states.append(state)
        made = record(len(self.states) - 1, self.epoch, blocks=tuple(changes), total=len(state))
        self.records.append(made)
        return made


def record(n: int, epoch: int = 1, *, blocks: Any = (), total: int = TOTAL, **fields: Any) -> IterationRecord:
    """25 ms long, a prefill in seat 0 and a decode in seat 2."""
    usual: dict[str, Any] = {
        "started_at": 1.7e9 + n,
        "t0": 1000.0 + 30 * n,
        "schedule": 1.0,
        "forward": 20.0,
        "sample": 3.0,
        "commit": 1.0,
        "policy": "continuous",
        "rows": (Row("r1", 0, "prefill", 16, 32, 2), Row("r2", 2, "decode", 1, 40, 3)),
        "waiting": (Waiting("r3", "no_kv", "needs 6 blocks, 3 free"),),
        "waiting_total": 1,
        "preempted": (),
        "finished": (Finished("r2", "stop", 2),),
        "kv": KVUse(total - 5, 2, 3, total),
        "budget": Budget(17, 512),
        "seats": 4,
    }
    return IterationRecord(n=n, epoch=epoch, blocks=blocks, **{**usual, **fields})


def state_of(pool: BlockPool) -> list[tuple[int, int]]:
    """References of each block of a pool, and 1 where it can be found."""
    return [(pool.references(block), int(pool.is_findable(block))) for block in range(pool.num_blocks)]
