"""What all viewers of the scheduler are sent: made once, without gaps, whenever one joins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest

from inference.serving.client import RecordLine, line_of
from inference.serving.messages import EngineStatus
from playground.sockets import broadcast
from playground.sockets.broadcast import Broadcast

pytestmark = pytest.mark.usefixtures("gateway")


def line(n: int, epoch: int = 1) -> RecordLine:
    record = {"n": n, "epoch": epoch, "rows": [], "finished": [], "preempted": [], "waiting": [], "waiting_total": 0}
    return line_of(orjson.dumps({**record, "kv": {}}))


class Watcher:
    """One viewer: what it was sent."""

    def __init__(self, hub: Broadcast, refuses: bool = False) -> None:
        self.frames: list[str] = []
        self._refuses = refuses
        self._news = asyncio.Condition()
        self.task = asyncio.create_task(hub.view(self._send))

    async def _send(self, frames: Sequence[str]) -> None:
        if self._refuses:
            raise ConnectionResetError
        async with self._news:
            self.frames += frames
            self._news.notify_all()

    @property
    def numbers(self) -> list[int]:
        """Of all records, those of snapshots first."""
        told = [orjson.loads(frame) for frame in self.frames]
        lists = [f["records"] if f["type"] == "iterations" else f["engines"][0]["records"] for f in told]
        return [record["n"] for records in lists for record in records]

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(10), self._news:
            await self._news.wait_for(holds)

    async def leave(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


@pytest.fixture
def engine(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The client: its engine's newest records are `history`; `tell` puts one more there and tells who watches."""
    monkeypatch.setattr(broadcast, "FRAME_INTERVAL", 0.001)
    monkeypatch.setattr(broadcast, "PACE", 0.0)
    client = gateway.client
    client.statuses = [EngineStatus("engine-1", 1, "ready", True, 0.0, epoch=1)]
    client.taken = 0
    original: Callable[..., Awaitable[list[RecordLine]]] = client.newest_iterations

    async def counted(name: str, count: int) -> list[RecordLine]:
        client.taken += 1
        return await original(name, count)

    def tell(*numbers: int) -> None:
        told = [orjson.loads(line(n).data) for n in numbers]
        client.history += told
        client.records.put_nowait(told)

    monkeypatch.setattr(client, "newest_iterations", counted)
    client.tell = tell
    return client


async def test_all_viewers_get_the_same_frames(engine: Any) -> None:
    hub = Broadcast()
    engine.tell(1, 2)
    watchers = [Watcher(hub) for _ in range(20)]
    for one in watchers:
        await one.until(lambda one=one: one.numbers == [1, 2])
    assert engine.taken == 1, "the snapshot was taken more than once"
    engine.tell(3, 4)
    for one in watchers:
        await one.until(lambda one=one: one.numbers == [1, 2, 3, 4])
    first, *others = watchers
    assert all(frame is known for one in others for frame, known in zip(one.frames, first.frames, strict=True))
    for one in watchers:
        await one.leave()


async def test_whoever_joins_later_misses_nothing_and_gets_nothing_twice(engine: Any) -> None:
    hub = Broadcast()
    engine.tell(1)
    watchers = [Watcher(hub)]
    for n in range(2, 40):
        engine.tell(n)
        await asyncio.sleep(0)
        if n % 7 == 0:
            watchers.append(Watcher(hub))
            await asyncio.sleep(0.002)
    for one in watchers:
        await one.until(lambda one=one: one.numbers == list(range(1, 40)))
        await one.leave()


async def test_the_work_ends_with_the_last_viewer_and_begins_again(engine: Any) -> None:
    hub = Broadcast()
    engine.tell(1)
    for n in (2, 3):
        watcher = Watcher(hub)
        await watcher.until(lambda watcher=watcher: len(watcher.frames) > 0)
        work = hub._task
        await watcher.leave()
        assert work is not None
        assert work.done()
        engine.tell(n)


async def test_one_that_can_not_be_sent_to_stops_no_other(engine: Any) -> None:
    hub = Broadcast()
    engine.tell(1)
    broken, well = Watcher(hub, refuses=True), Watcher(hub)
    await well.until(lambda: well.numbers == [1])
    engine.tell(2)
    await well.until(lambda: well.numbers == [1, 2])
    with pytest.raises(ConnectionResetError):
        await broken.task
    await well.leave()


async def test_what_ends_the_work_is_told_to_all(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(max_age: float = 0.0) -> list[EngineStatus]:
        raise ZeroDivisionError

    hub = Broadcast()
    works = engine.engines
    monkeypatch.setattr(engine, "engines", broken)
    watchers = [Watcher(hub), Watcher(hub)]
    done = await asyncio.wait_for(asyncio.gather(*(one.task for one in watchers), return_exceptions=True), 5)
    assert [type(one) for one in done] == [ZeroDivisionError, ZeroDivisionError]
    monkeypatch.setattr(engine, "engines", works)
    after = Watcher(hub)
    await after.until(lambda: len(after.frames) == 1)
    await after.leave()


async def test_whoever_has_the_history_is_not_told_it_again(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast, "STATUS_INTERVAL", 0.005)
    hub = Broadcast()
    engine.tell(1, 2)
    early = Watcher(hub)
    await early.until(lambda: early.numbers == [1, 2])
    engine.statuses = [replace(engine.statuses[0], paused=True)]
    await early.until(lambda: len(early.frames) == 2)
    [told] = orjson.loads(early.frames[1])["engines"]
    assert (told["paused"], told["records"], told["blocks"]) == (True, [], None)
    late = Watcher(hub)
    await late.until(lambda: late.numbers == [1, 2])
    engine.tell(3)
    for one in (early, late):
        await one.until(lambda one=one: one.numbers == [1, 2, 3])
        await one.leave()


async def test_whoever_comes_later_hears_nothing_of_an_engine_that_has_gone(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcast, "STATUS_INTERVAL", 0.005)
    hub = Broadcast()
    engine.tell(1, 2)
    early = Watcher(hub)
    await early.until(lambda: early.numbers == [1, 2])
    engine.statuses = []
    await early.until(lambda: orjson.loads(early.frames[-1]) == {"type": "snapshot", "engines": []})
    late = Watcher(hub)
    await late.until(lambda: len(late.frames) == 1)
    await asyncio.sleep(0.05)  # some rounds
    assert [orjson.loads(frame) for frame in late.frames] == [{"type": "snapshot", "engines": []}]
    for one in (early, late):
        await one.leave()
