"""Made-up iterations of a full engine, for timing what draws them.

Knows: the form of the scheduler feed. Must not know: the engine, the page.
"""

from __future__ import annotations

import random
from typing import Any

BLOCKS = 4096
BUDGET = 512


class Iterations:
    """Records of an engine that is full: requests come, prefill in chunks, decode and go; KV blocks with them."""

    def __init__(self, seats: int, per_second: float, seed: int = 7) -> None:
        self._rng = random.Random(seed)
        self._seats, self._ms = seats, 1000 / per_second
        self._n = self._made = 0
        self._free = list(range(BLOCKS))
        self._running: list[dict[str, Any]] = [self._request() for _ in range(seats)]

    def _request(self) -> dict[str, Any]:
        self._made += 1
        prompt = self._rng.randrange(20, 400)
        length = prompt + self._rng.randrange(20, 300)
        return {"id": f"request-{self._made:06d}", "prompt": prompt, "length": length, "context": 0, "blocks": []}

    def record(self) -> dict[str, Any]:
        self._n += 1
        rows, finished, changes = [], [], []
        for seat, request in enumerate(self._running):
            prefill = request["context"] < request["prompt"]
            tokens = min(64, request["prompt"] - request["context"]) if prefill else 1
            request["context"] += tokens
            self._grow(request, changes)
            rows.append(_row(request, seat, prefill, tokens))
            if request["context"] >= request["length"]:
                finished.append({"request_id": request["id"], "reason": "stop", "seat": seat})
                changes += [[block, 0, 1, None] for block in request["blocks"]]
                self._free += request["blocks"]
                self._running[seat] = self._request()
        return self._around(rows, finished, changes)

    def _grow(self, request: dict[str, Any], changes: list[list[Any]]) -> None:
        while len(request["blocks"]) * 16 < request["context"] and self._free:
            request["blocks"].append(self._free.pop(0))
            changes.append([request["blocks"][-1], 1, 0, request["id"]])

    def _around(self, rows: list[Any], finished: list[Any], changes: list[Any]) -> dict[str, Any]:
        why = {"reason": "no_seat", "detail": f"seats {self._seats} of {self._seats}"}
        waiting = [{"request_id": f"waits-{self._n // 40 + i:05d}", **why} for i in range(30)]
        used = BLOCKS - len(self._free)
        return {
            "n": self._n,
            "epoch": 1,
            "started_at": 1_700_000_000 + self._n * self._ms / 1000,
            "t0": self._n * self._ms,
            "schedule": 0.3,
            "forward": self._ms - 2 + self._rng.random(),
            "sample": 0.4,
            "commit": 0.2,
            "policy": "continuous",
            "rows": rows,
            "waiting": waiting,
            "waiting_total": len(waiting),
            "preempted": [],
            "finished": finished,
            "kv": {"free": BLOCKS - used, "cached": 0, "used": used, "total": BLOCKS},
            "budget": {"used": sum(row["tokens"] for row in rows), "limit": BUDGET},
            "seats": self._seats,
            "idle": [],
            "padding": 0,
            "blocks": changes,
        }


def _row(request: dict[str, Any], seat: int, prefill: bool, tokens: int) -> dict[str, Any]:
    return {
        "request_id": request["id"],
        "seat": seat,
        "kind": "prefill" if prefill else "decode",
        "tokens": tokens,
        "context": request["context"],
        "blocks": len(request["blocks"]),
    }


def snapshot(seats: int) -> dict[str, Any]:
    """The feed's first frame: one engine at rest."""
    settings = {"max_num_seqs": seats, "max_num_batched_tokens": BUDGET, "block_size": 16, "policy": "continuous"}
    engine = {"engine": "engine-1", "state": "ready", "busy": True, "model": "made up", "epoch": 1}
    kv = {"free": BLOCKS, "cached": 0, "used": 0, "total": BLOCKS}
    now = {"kv": kv, "running": [], "waiting": [], "waiting_total": 0, "records": []}
    return {"type": "snapshot", "engines": [{**engine, "settings": settings, **now}]}
