"""New records: in order, each once, engines come and go, a broker that is away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.ledgers import Run

from inference.serving import ledger_feed
from inference.serving.ledger_feed import LedgerFeed


async def numbers(feed: LedgerFeed, *engines: str) -> dict[str, list[int]]:
    return {engine: [line.name.n for line in lines] for engine, lines in (await feed.read(engines)).items()}


async def test_records_of_all_engines_come_once_and_in_order(broker: Any) -> None:
    run, feed = Run(5, 30), LedgerFeed(broker)
    await broker.append_ledger("a", run.lines[:2])
    assert await numbers(feed, "a", "b") == {"a": [1, 2]}
    await broker.append_ledger("a", run.lines[2:5])
    await broker.append_ledger("b", run.lines[:1])
    assert await numbers(feed, "a", "b") == {"a": [3, 4, 5], "b": [1]}
    assert await numbers(feed, "a", "b") == {}
    assert [line.data for line in (await LedgerFeed(broker).read(["a"]))["a"]] == run.lines[:5]


async def test_no_engine_no_record(broker: Any) -> None:
    assert await numbers(LedgerFeed(broker)) == {}


async def test_many_records_come_in_parts(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_feed, "AT_ONCE", 12)
    feed = LedgerFeed(broker)
    await broker.append_ledger("a", Run(5, 30).lines)
    seen = [(await numbers(feed, "a")).get("a", []) for _ in range(4)]
    assert seen == [[*range(1, 13)], [*range(13, 25)], [*range(25, 31)], []]


async def test_what_is_long_past_is_not_told(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_feed, "BEFORE", 0)
    run, feed = Run(5, 9), LedgerFeed(broker)
    await broker.append_ledger("a", run.lines[:5])
    await asyncio.sleep(0.01)  # ids are milliseconds
    await broker.append_ledger("a", run.lines[5:6])
    assert await numbers(feed, "a") in (
        {},
        {"a": [6]},
    )  # the newest one itself has the id that it begins at, or a later
    await broker.append_ledger("a", run.lines[6:])
    assert await numbers(feed, "a") == {"a": [7, 8, 9]}


async def test_records_after_a_flush_are_read(broker: Any) -> None:
    run, feed = Run(5, 9), LedgerFeed(broker)
    await broker.append_ledger("a", run.lines[:5])
    assert await numbers(feed, "a") == {"a": [1, 2, 3, 4, 5]}
    await broker.redis.flushall()
    await asyncio.sleep(0.01)
    await broker.append_ledger("a", run.lines[5:])
    assert await numbers(feed, "a") == {"a": [6, 7, 8, 9]}
