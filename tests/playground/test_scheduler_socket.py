"""/ws/scheduler/: snapshot, then iterations; newest wins."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

import orjson
import pytest
from django.contrib.auth.models import User
from support.ledgers import Run
from support.sockets import Browser

from inference.serving.messages import EngineStatus
from playground.sockets import broadcast, snapshot

pytestmark = pytest.mark.django_db(transaction=True)
KV = {"free": 6, "cached": 0, "used": 2, "total": 8}


def record(n: int, epoch: int = 1) -> dict[str, Any]:
    return {
        "n": n,
        "epoch": epoch,
        "rows": [{"request_id": "r1", "seat": 0}, {"request_id": "r2", "seat": 1}],
        "waiting": [{"request_id": "r3", "reason": "no_kv", "detail": "needs 6 blocks, 3 free"}],
        "waiting_total": 1,
        "finished": [{"request_id": "r2", "reason": "stop", "seat": 1}],
        "preempted": [],
        "kv": KV,
    }


def status(state: str = "ready", busy: bool = True) -> EngineStatus:
    return EngineStatus("engine-1", 1, state, busy, 0.0, model="m", settings={"max_num_seqs": 4}, kv=KV, epoch=1)


async def test_snapshot_then_iterations(staff: User, gateway: Any) -> None:
    gateway.client.statuses, gateway.client.history = [status()], [record(1), record(2)]
    viewer = await Browser.of(staff, "/ws/scheduler/")
    told = await viewer.hear()
    assert told["type"] == "snapshot"
    (engine,) = told["engines"]
    assert (engine["engine"], engine["kv"], engine["settings"]) == ("engine-1", KV, {"max_num_seqs": 4})
    assert [row["request_id"] for row in engine["running"]] == ["r1"]
    assert engine["waiting"][0]["reason"] == "no_kv"
    assert [item["n"] for item in engine["records"]] == [1, 2]
    await gateway.client.records.put([record(2), record(3), record(4)])
    frame = await viewer.hear()
    assert (frame["type"], frame["engine"], [item["n"] for item in frame["records"]]) == (
        "iterations",
        "engine-1",
        [3, 4],
    )
    await gateway.client.records.put([record(1, epoch=2)])  # after a restart n begins anew
    assert [item["epoch"] for item in (await viewer.hear())["records"]] == [2]
    await viewer.ask(type="ping", t=1)
    assert (await viewer.hear())["type"] == "pong"
    await viewer.disconnect()


async def test_no_engine_yet(staff: User, gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast, "STATUS_INTERVAL", 0.01)
    viewer = await Browser.of(staff, "/ws/scheduler/")
    assert await viewer.hear() == {"type": "snapshot", "engines": []}
    gateway.client.statuses = [status("loading", busy=False)]
    assert (await viewer.hear())["engines"][0]["state"] == "loading"
    gateway.client.statuses = [status(busy=False)]
    engine = (await viewer.hear())["engines"][0]
    assert (engine["state"], engine["running"], engine["waiting"]) == ("ready", [], [])
    await viewer.disconnect()


async def test_a_viewer_goes_though_a_cancellation_is_swallowed(
    staff: User, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the broker's client does before Python 3.12, when an answer comes at the same moment."""
    monkeypatch.setattr(broadcast, "STATUS_INTERVAL", 0.01)
    asked = asyncio.Event()

    async def engines(max_age: float = 0.0) -> list[EngineStatus]:
        if not asked.is_set():
            asked.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        return []

    monkeypatch.setattr(gateway.client, "engines", engines)
    viewer = await Browser.of(staff, "/ws/scheduler/")
    await asked.wait()
    await viewer.send_input({"type": "websocket.disconnect", "code": 1000})
    await asyncio.wait_for(viewer.future, 5)


async def test_another_policy_is_told(staff: User, gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast, "STATUS_INTERVAL", 0.01)
    gateway.client.statuses = [status()]
    viewer = await Browser.of(staff, "/ws/scheduler/")
    await viewer.hear("snapshot")
    gateway.client.statuses = [replace(status(), settings={"policy": "static"})]
    assert (await viewer.hear("snapshot"))["engines"][0]["settings"] == {"policy": "static"}
    await viewer.disconnect()


@pytest.mark.parametrize("text", ["{", '{"type":"fly"}', '{"type":"generate","prompt":"hi"}'])
async def test_other_messages_get_an_error_and_the_socket_lives(text: str, staff: User, gateway: Any) -> None:
    viewer = await Browser.of(staff, "/ws/scheduler/")
    await viewer.hear("snapshot")
    await viewer.send_to(text)
    assert (await viewer.hear())["type"] == "error"
    await viewer.ask(type="ping")
    assert (await viewer.hear())["type"] == "pong"
    await viewer.disconnect()


def test_records_are_put_into_frames_that_can_be_sent() -> None:
    lines = [orjson.dumps(record(n)) for n in range(1, 10)]
    size = len(lines[0])
    assert snapshot.in_frames(lines, 4 * size) == [lines[:4], lines[4:8], lines[8:]]
    assert snapshot.in_frames(lines, 100 * size) == [lines]
    assert snapshot.in_frames(lines[:2], 1) == [lines[:1], lines[1:2]]
    assert snapshot.in_frames([], 1) == []


async def test_a_long_history_comes_in_several_frames(
    staff: User, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "RECORDS_BYTES", 2 * len(orjson.dumps(record(1))))
    gateway.client.statuses, gateway.client.history = [status()], [record(n) for n in range(1, 6)]
    viewer = await Browser.of(staff, "/ws/scheduler/")
    told = await viewer.hear()
    assert [item["n"] for item in told["engines"][0]["records"]] == [1, 2]
    assert [item["n"] for item in (await viewer.hear())["records"]] == [3, 4]
    assert [item["n"] for item in (await viewer.hear())["records"]] == [5]
    await viewer.disconnect()


def keep(gateway: Any, run: Run) -> None:
    gateway.client.ledger.kept.update({(run.epoch, n): line for n, line in enumerate(run.lines, 1)})
    gateway.client.history = [orjson.loads(line) for line in run.lines]


async def test_a_snapshot_has_the_blocks_after_its_newest_record(staff: User, gateway: Any) -> None:
    run = Run(1, 9)
    keep(gateway, run)
    gateway.client.statuses = [status()]
    viewer = await Browser.of(staff, "/ws/scheduler/")
    [engine] = (await viewer.hear("snapshot"))["engines"]
    assert engine["blocks"] == {"epoch": 1, "n": 9, "start": 0, **run.drawn(9)}
    await viewer.disconnect()


async def test_a_large_map_comes_in_parts(staff: User, gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "BLOCKS_AT_ONCE", 5)
    run = Run(1, 9)
    keep(gateway, run)
    gateway.client.statuses = [status()]
    viewer = await Browser.of(staff, "/ws/scheduler/")
    [engine] = (await viewer.hear("snapshot"))["engines"]
    assert engine["blocks"] is None
    parts = [await viewer.hear("blocks") for _ in range(3)]
    assert [(part["engine"], part["n"], part["start"], part["total"]) for part in parts] == [
        ("engine-1", 9, start, 12) for start in (0, 5, 10)
    ]
    drawn = [[references, cached] for part in parts for references, cached, _ in part["blocks"]]
    assert drawn == [[references, cached] for references, cached, _ in run.states[9]]
    await viewer.disconnect()


async def test_a_map_that_is_not_kept_is_null(staff: User, gateway: Any) -> None:
    gateway.client.statuses, gateway.client.history = [status()], [record(1), record(2)]
    viewer = await Browser.of(staff, "/ws/scheduler/")
    [engine] = (await viewer.hear("snapshot"))["engines"]
    assert engine["blocks"] is None
    assert [item["n"] for item in engine["records"]] == [1, 2]
    await viewer.disconnect()


async def test_a_paused_engine_is_told_with_those_who_keep_their_seats(
    staff: User, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcast, "STATUS_INTERVAL", 0.01)
    gateway.client.statuses = [status()]
    viewer = await Browser.of(staff, "/ws/scheduler/")
    engine = (await viewer.hear("snapshot"))["engines"][0]
    assert (engine["paused"], engine["slow_ms"]) == (False, 0.0)
    gateway.client.statuses = [replace(status(), paused=True, slow_ms=250.0)]
    empty = {**record(2), "rows": [], "finished": []}
    gateway.client.history = [record(1), empty, {**empty, "n": 3}]
    engine = (await viewer.hear("snapshot"))["engines"][0]
    assert (engine["paused"], engine["slow_ms"]) == (True, 250.0)
    assert [row["request_id"] for row in engine["running"]] == ["r1"], "r2 had ended in the last one with rows"
    gateway.client.statuses = [replace(status(), settings={"max_num_seqs": 2})]
    gateway.client.history = [record(1), {**empty, "n": 1, "epoch": 2}]
    engine = (await viewer.hear("snapshot"))["engines"][0]
    assert (engine["running"], engine["settings"]) == ([], {"max_num_seqs": 2})
    await viewer.disconnect()
