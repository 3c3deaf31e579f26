"""Epochs: each start of an engine has one of its own, and a later start a greater one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from support import brokers
from support.fake_engine import FakeTokenizer

from inference.serving.ledger_disk import LedgerDisk
from inference.serving.ledger_store import LedgerKeep
from inference.serving.link import BrokerLink
from inference.serving.messages import EngineStatus
from inference.serving.segments import SegmentInfo

Start = Callable[..., BrokerLink]


@pytest.fixture
def start(valkey: Any, broker: Any) -> Iterator[Start]:
    """Links of processes of one engine; those that are open at the end are closed."""
    links: list[BrokerLink] = []

    def start_one(**keep: Any) -> BrokerLink:
        status = EngineStatus("w", 1, "loading", False, time.time())
        links.append(BrokerLink(valkey.url, "w", f"w@{len(links)}", SimpleQueue(), status, LedgerKeep(**keep)))
        links[-1].start()
        return links[-1]

    yield start_one
    for one in links:
        one.close()


async def test_it_is_the_time_or_one_more_than_the_last(broker: Any) -> None:
    given = [await broker.next_epoch("w", least) for least in (100, 100, 50, 500, 500, 2**52)]
    assert given == [100, 101, 102, 500, 501, 2**52]
    assert await broker.next_epoch("another", 50) == 50


async def test_no_two_have_the_same(broker: Any) -> None:
    given = await asyncio.gather(*(broker.next_epoch("w", 100) for _ in range(20)))
    assert sorted(given) == list(range(100, 120))


async def test_two_starts_within_a_second(start: Start) -> None:
    epochs = [one.epoch() for one in (start(), start(), start())]
    assert len(set(epochs)) == 3
    assert max(epochs) - min(epochs) < 60
    assert time.time() - 60 < min(epochs) <= time.time() + 3


async def test_the_status_has_it_from_the_first_beat_on(start: Start, client: Any) -> None:
    epoch = start().epoch()
    while not (engines := await client.engines()):
        await asyncio.sleep(0.02)
    assert [status.epoch for status in engines] == [epoch]


async def test_the_clock_went_back(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    first = start().epoch()
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 86400)
    assert start().epoch() == first + 1


async def test_a_broker_that_lost_its_state_is_told_of_it(start: Start, broker: Any) -> None:
    first = start()
    epoch = first.epoch()
    first.serve(FakeTokenizer(), 8)
    await until_group(broker)
    await broker.redis.flushall()
    await until_group(broker)
    assert await broker.next_epoch("w", 1) == epoch + 1


async def until_group(broker: Any) -> None:
    """The link makes it when it finds none; the test's timeout is the bound."""
    while not await broker.redis.exists(broker.key("requests")):
        await asyncio.sleep(0.02)


async def test_what_is_on_disk_counts_too(start: Start, tmp_path: Path) -> None:
    later = int(time.time()) + 1000
    disk = LedgerDisk(tmp_path)
    for epoch in (later - 5, later):
        disk.write("w", SegmentInfo(epoch, 1, 2, 3), b"...")
    disk.write("another", SegmentInfo(later + 7, 1, 2, 3), b"...")
    assert (disk.newest_epoch("w"), disk.newest_epoch("nobody")) == (later, 0)
    assert start(folder=tmp_path).epoch() == later + 1


def test_a_start_waits_for_a_broker_that_is_away() -> None:
    server = brokers.PrivateBroker()
    server.kill()
    status = EngineStatus("w", 1, "loading", False, time.time())
    one = BrokerLink(server.url, "w", "w@1", SimpleQueue(), status)
    one.start()
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(one.epoch()))
    waiting.start()
    waiting.join(0.3)
    assert (waiting.is_alive(), one.status.epoch) == (True, 0)
    server.start()
    waiting.join(20)
    assert found == [one.status.epoch]
    one.close()
    server.close()
