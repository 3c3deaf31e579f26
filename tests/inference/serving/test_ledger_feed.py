"""Live records: read once for all watchers, newest win, engines come and go."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio
from support.ledgers import Run

from inference.serving import ledger_feed
from inference.serving.ledger_feed import LedgerFeed
from inference.serving.messages import EngineStatus


@pytest.fixture
def reads(broker: Any, monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[set[str]]:
    """Of whom the feed has begun to read, each time that it does."""
    told: asyncio.Queue[set[str]] = asyncio.Queue()
    read = broker.read_ledgers

    async def telling(after: dict[str, str]) -> Any:
        told.put_nowait(set(after))
        return await read(after, wait_ms=20)

    monkeypatch.setattr(broker, "read_ledgers", telling)
    return told


@pytest_asyncio.fixture
async def feed(broker: Any, reads: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(ledger_feed, "LOOK_EVERY", 0.02)
    made = LedgerFeed(broker)
    yield made
    await made.close()


async def alive(broker: Any, *names: str) -> None:
    for name in names:
        await broker.beat(f"{name}@1", EngineStatus(name, 1, "ready", False, time.time()))


async def collect(watching: Any, wanted: dict[str, int]) -> dict[str, list[int]]:
    """Numbers of records by engine, until the last ones wanted have come."""
    seen: dict[str, list[int]] = {name: [] for name in wanted}
    async with asyncio.timeout(20):
        async for engine, records in watching:
            seen[engine] += [record["n"] for record in records]
            if all(numbers[-1:] == [wanted[name]] for name, numbers in seen.items()):
                return seen
    raise AssertionError("the feed ended")


async def begun(reads: asyncio.Queue[set[str]], *names: str) -> None:
    """Wait until the feed reads these engines' streams."""
    async with asyncio.timeout(20):
        while not {*names} <= await reads.get():
            pass


async def test_all_watchers_get_the_same_records_of_all_engines(broker: Any, feed: LedgerFeed, reads: Any) -> None:
    run = Run(5, 30)
    await alive(broker, "a", "b")
    for name in ("a", "b"):
        await broker.append_ledger(name, run.lines[:1])
    async with aclosing(feed.watch()) as one, aclosing(feed.watch()) as other:
        seen = asyncio.gather(collect(one, {"a": 30, "b": 20}), collect(other, {"a": 30, "b": 20}))
        await begun(reads, "a", "b")
        await broker.append_ledger("a", run.lines[1:])
        await broker.append_ledger("b", run.lines[1:20])
        first, second = await seen
    assert first == second == {"a": list(range(1, 31)), "b": list(range(1, 21))}
    assert feed._watchers == set()


async def test_a_slow_watcher_gets_the_newest(
    broker: Any, feed: LedgerFeed, reads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_feed, "RECORDS_PENDING", 5)
    run = Run(5, 30)
    await alive(broker, "a")
    await broker.append_ledger("a", run.lines[:1])
    async with aclosing(feed.watch()) as watching, asyncio.timeout(20):
        first = asyncio.ensure_future(anext(watching))
        assert (await first)[1][0]["n"] == 1
        await broker.append_ledger("a", run.lines[1:])  # while it looks at the first
        [pending] = feed._watchers
        while not pending.records["a"] or pending.records["a"][-1]["n"] < 30:
            await reads.get()
        _, newest = await anext(watching)
        assert [record["n"] for record in newest] == [26, 27, 28, 29, 30]


async def test_an_engine_that_comes_later_is_seen(broker: Any, feed: LedgerFeed, reads: Any) -> None:
    run = Run(5, 9)
    async with aclosing(feed.watch()) as watching:
        seen = asyncio.ensure_future(collect(watching, {"late": 9}))
        await asyncio.sleep(0.05)  # it has looked, and nobody was there
        await alive(broker, "late")
        await begun(reads, "late")
        await broker.append_ledger("late", run.lines)
        assert await seen == {"late": list(range(1, 10))}


async def test_what_is_long_past_is_not_told(broker: Any, feed: LedgerFeed, reads: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(ledger_feed, "BEFORE", 0)
    run = Run(5, 9)
    await alive(broker, "a")
    await broker.append_ledger("a", run.lines[:5])
    await asyncio.sleep(0.01)  # ids are milliseconds
    await broker.append_ledger("a", run.lines[5:6])
    async with aclosing(feed.watch()) as watching:
        seen = asyncio.ensure_future(collect(watching, {"a": 9}))
        await begun(reads, "a")
        await broker.append_ledger("a", run.lines[6:])
        assert await seen == {"a": [7, 8, 9]}
