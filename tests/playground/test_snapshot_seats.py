"""Who has a seat, as a snapshot of the scheduler tells it while the engine is paused for long."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from inference.serving.messages import EngineStatus
from playground.sockets import snapshot

KV = {"free": 6, "cached": 0, "used": 2, "total": 8}


def record(n: int, *seats: str, **fields: Any) -> dict[str, Any]:
    rows = [{"request_id": name, "seat": seat} for seat, name in enumerate(seats)]
    usual = {"waiting": [], "waiting_total": 0, "finished": [], "preempted": [], "kv": KV}
    return {"n": n, "epoch": 1, "rows": rows, **usual, **fields}


def paused(running: int) -> EngineStatus:
    return EngineStatus("engine-1", 1, "ready", True, 0.0, epoch=1, paused=True, running=running, kv=KV)


async def seated(gateway: Any, running: int, *history: dict[str, Any]) -> list[str]:
    gateway.client.history = list(history)
    [frame, *_] = (await snapshot.take_snapshot([paused(running)])).frames
    [engine] = orjson.loads(frame)["engines"]
    return [row["request_id"] for row in engine["running"]]


async def test_they_are_found_however_long_the_pause(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "HISTORY", 5)
    pause = [record(n) for n in range(2, 40)]
    gone = {"finished": [{"request_id": "b", "reason": "cancelled", "seat": 1}]}
    assert await seated(gateway, 2, record(1, "a", "b"), *pause) == ["a", "b"]
    assert await seated(gateway, 1, record(1, "a", "b"), *pause, record(40, **gone)) == ["a"]
    assert await seated(gateway, 1, record(1, "a", "b"), record(2, preempted=["a"]), *pause[1:]) == ["b"]


async def test_nobody_is_looked_for_where_nobody_runs(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "HISTORY", 5)
    asked = []
    newest = gateway.client.newest_iterations

    async def newest_iterations(engine: str, count: int) -> Any:
        asked.append(count)
        return await newest(engine, count)

    monkeypatch.setattr(gateway.client, "newest_iterations", newest_iterations)
    assert await seated(gateway, 0, record(1, "a"), *[record(n) for n in range(2, 40)]) == []
    assert asked == [5]


@pytest.mark.parametrize("now", [{"state": "loading", "epoch": 0}, {"epoch": 2}])
async def test_after_a_restart_nobody_has_a_seat_of_the_process_before(gateway: Any, now: dict[str, Any]) -> None:
    waits = [{"request_id": "c", "reason": "no_seat", "detail": "", "tokens": 1}]
    gateway.client.history = [record(1, "a", "b", waiting=waits, waiting_total=1)]
    engine = EngineStatus("engine-1", 1, **{"state": "ready", "busy": True, "progress_at": 0.0, "waiting": 3, **now})
    [frame, *_] = (await snapshot.take_snapshot([engine])).frames
    [told] = orjson.loads(frame)["engines"]
    assert (told["running"], told["waiting"], told["waiting_total"]) == ([], [], 3)
    assert [found["n"] for found in told["records"]] == [1]
