"""A follower reads a long log part by part: whoever is slow holds a part of it and not all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from support import brokers

from inference.serving import client as module
from inference.serving.client import Delta, EngineClient, Finish

LONG = 25


@pytest.fixture(scope="module")
def valkey() -> Any:
    with brokers.private() as server:
        yield server


@pytest_asyncio.fixture
async def client(valkey: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EngineClient]:
    monkeypatch.setattr(module, "LOG_PART", 10)
    client = EngineClient(valkey.url)
    await client.broker.redis.flushall()
    yield client
    await client.close()


async def write(client: EngineClient, *events: Any, epoch: int = 1) -> None:
    """Entries of a log as an engine writes them."""
    for event in events:
        kind = b"finish" if isinstance(event, Finish) else b"delta"
        await client.broker.redis.xadd(client.broker.key("out", "r"), {kind: event.encode()}, id=f"{epoch}-{event.seq}")


def deltas(first: int, last: int) -> list[Delta]:
    return [Delta("r", seq, f"w{seq} ", [seq], seq) for seq in range(first, last + 1)]


async def seqs(client: EngineClient, after_seq: int = 0) -> list[int]:
    return [event.seq async for event in client.follow("r", after_seq)]


@pytest.mark.parametrize("length", [0, 1, 9, 10, 11, 20, LONG])
async def test_whole_and_in_order(client: EngineClient, length: int) -> None:
    await write(client, *deltas(1, length), Finish("r", length + 1, "stop"))
    for after in {0, 1, 9, 10, 11, length} & set(range(length + 1)):
        assert await seqs(client, after) == list(range(after + 1, length + 2))


async def test_no_more_than_a_part_at_once(client: EngineClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await write(client, *deltas(1, LONG), Finish("r", LONG + 1, "stop"))
    parts: list[int] = []
    read = client.broker.log_part

    async def noted(*args: Any) -> Any:
        found = await read(*args)
        parts.append(len(found[0].deltas))
        return found

    monkeypatch.setattr(client.broker, "log_part", noted)
    following = client.follow("r")
    await anext(following)
    assert parts == [10]
    assert [event.seq async for event in following] == list(range(2, LONG + 2))
    assert parts == [10, 10, 5]


async def test_who_falls_behind_again_and_again_reads_nothing_twice(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log is long by then, and to read all of it each time would take what is left of the machine."""
    monkeypatch.setattr(module, "FOLLOWER_QUEUE", 4)
    read: list[int] = []
    log_part = client.broker.log_part

    async def noted(*args: Any) -> Any:
        found = await log_part(*args)
        read.extend(delta.seq for delta in found[0].deltas)
        return found

    monkeypatch.setattr(client.broker, "log_part", noted)
    await write(client, *deltas(1, 3))
    following = client.follow("r")
    heard = [(await anext(following)).seq for _ in range(3)]
    for first in (4, 14, 24):
        more = deltas(first, first + 9)
        await write(client, *more)
        for delta in more:
            client._deliver(delta)
        heard += [(await anext(following)).seq for _ in more]
    assert heard == list(range(1, 34))
    assert read == heard


async def test_a_log_that_grows_meanwhile(client: EngineClient) -> None:
    await write(client, *deltas(1, 12))
    following = client.follow("r")
    heard = [(await anext(following)).seq for _ in range(11)]
    await write(client, *deltas(13, LONG), Finish("r", LONG + 1, "stop"))
    for box in client._mailboxes["r"]:
        box.begin_anew()
    heard += [event.seq async for event in following]
    assert heard == list(range(1, LONG + 2))


async def test_a_log_that_another_replaces_is_read_from_its_start(client: EngineClient) -> None:
    await write(client, *deltas(1, 15), epoch=9)
    following = client.follow("r")
    heard = [(await anext(following)).seq for _ in range(11)]
    await client.broker.redis.flushall()
    await write(client, *deltas(1, LONG), Finish("r", LONG + 1, "stop"), epoch=2)
    for box in client._mailboxes["r"]:
        box.begin_anew()
    heard += [event.seq async for event in following]
    assert heard == list(range(1, LONG + 2))


async def test_of_a_log_that_is_not_there_yet(client: EngineClient) -> None:
    waiting = asyncio.create_task(seqs(client))
    while not client._mailboxes.get("r"):
        await asyncio.sleep(0)
    await write(client, *deltas(1, 3), Finish("r", 4, "stop"))
    while not waiting.done():
        for box in client._mailboxes.get("r", ()):
            box.begin_anew()
        await asyncio.sleep(0.01)
    assert waiting.result() == [1, 2, 3, 4]
