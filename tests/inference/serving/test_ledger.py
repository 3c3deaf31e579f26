"""What is kept of iterations: in stream, segments and files; over restarts, and when something is full or gone."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.ledgers import Run

from inference.serving import ledger_reader, ledger_store
from inference.serving.broker import SEGMENT_KEPT
from inference.serving.ledger_disk import LedgerDisk
from inference.serving.ledger_reader import LedgerReader, Span
from inference.serving.ledger_store import LedgerKeep, LedgerStore
from inference.serving.messages import Submission
from inference.serving.segments import SegmentInfo

ENGINE = "engine-1"
STREAM = 20  # records


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of 8 records, a stream of 20."""
    monkeypatch.setattr(ledger_store, "SEGMENT_RECORDS", 8)
    for module in (ledger_store, ledger_reader):
        monkeypatch.setattr(module, "LEDGER_LENGTH", STREAM)


async def put(broker: Any, store: LedgerStore, run: Run, first: int, last: int) -> None:
    """As the link does: records into the stream, then into the store."""
    for record, line in zip(run.records[first - 1 : last], run.lines[first - 1 : last], strict=True):
        await broker.append_ledger(ENGINE, [line])
        store.add(record, line)
    await broker.redis.xtrim(broker.key("ledger", ENGINE), maxlen=STREAM, approximate=False)
    await store.do_due()


def store_of(broker: Any, run: Run, **keep: Any) -> LedgerStore:
    return LedgerStore(broker, ENGINE, run.epoch, LedgerKeep(**keep))


async def numbers(reader: LedgerReader, epoch: int, first: int, last: int) -> list[int]:
    records = [orjson.loads(line) for line in await reader.records(ENGINE, epoch, first, last)]
    assert {record["epoch"] for record in records} <= {epoch}
    return [record["n"] for record in records]


async def test_a_range_is_whole_wherever_its_parts_are(broker: Any, tmp_path: Path) -> None:
    run = Run(5, 50)
    store = store_of(broker, run, folder=tmp_path, iterations=16)
    await put(broker, store, run, 1, 50)
    reader = LedgerReader(broker, tmp_path)
    assert [info[:3] for info in await broker.segments(ENGINE)] == [(5, 33, 40), (5, 41, 48)]
    assert await reader.records(ENGINE, 5, 1, 50) == run.lines
    for first, last in ((1, 1), (7, 10), (30, 45), (48, 50), (50, 50)):
        assert await reader.records(ENGINE, 5, first, last) == run.lines[first - 1 : last]
    assert await numbers(reader, 5, 45, 99) == list(range(45, 51))
    assert await numbers(reader, 6, 1, 99) == []
    assert await reader.spans(ENGINE) == [Span(5, 1, 50)]
    assert [len(page) async for page in reader.pages(ENGINE, 5, 1, 50)] == [50]
    assert await numbers(LedgerReader(broker), 5, 1, 50) == list(range(33, 51))


async def test_the_map_after_every_iteration(broker: Any, tmp_path: Path) -> None:
    run = Run(5, 50, seed=2)
    await put(broker, store_of(broker, run, folder=tmp_path, iterations=16), run, 1, 50)
    reader = LedgerReader(broker, tmp_path)
    for n in range(1, 51):
        blocks = await reader.block_map(ENGINE, 5, n)
        assert blocks is not None
        assert blocks.to_json() == run.drawn(n)
    empty = await reader.block_map(ENGINE, 5, 0)
    assert empty is not None
    assert empty.total == 0
    assert await reader.block_map(ENGINE, 5, 51) is None
    assert await reader.block_map(ENGINE, 4, 3) is None


async def test_before_the_first_segment_the_stream_alone_tells(broker: Any) -> None:
    run = Run(5, 6, seed=2)
    await put(broker, store_of(broker, run), run, 1, 6)
    reader = LedgerReader(broker)
    assert await broker.segments(ENGINE) == []
    assert await reader.spans(ENGINE) == [Span(5, 1, 6)]
    blocks = await reader.block_map(ENGINE, 5, 4)
    assert blocks is not None
    assert blocks.to_json() == run.drawn(4)


async def test_an_engine_that_died_before_its_first_segment_is_known(broker: Any) -> None:
    run = Run(await broker.next_epoch(ENGINE, 5), 6)
    await put(broker, store_of(broker, run), run, 1, 6)
    reader = LedgerReader(broker)
    assert await broker.segments(ENGINE) == []
    assert await reader.engines() == [ENGINE]


async def test_what_a_dead_process_left_is_kept_by_the_next(broker: Any, tmp_path: Path) -> None:
    """It died before its last segment was whole; the stream still has it."""
    first, second = Run(5, 13, seed=1), Run(9, 4, seed=2)
    await put(broker, store_of(broker, first, folder=tmp_path), first, 1, 13)
    after = store_of(broker, second, folder=tmp_path)
    await put(broker, after, second, 1, 4)
    await after.close()
    await broker.redis.flushall()
    reader = LedgerReader(broker, tmp_path)
    assert await reader.spans(ENGINE) == [Span(5, 1, 13), Span(9, 1, 4)]
    assert await reader.records(ENGINE, 5, 1, 99) == first.lines
    assert await reader.records(ENGINE, 9, 1, 99) == second.lines
    for run, n in ((first, 13), (first, 10), (second, 4)):
        blocks = await reader.block_map(ENGINE, run.epoch, n)
        assert blocks is not None
        assert blocks.to_json() == run.drawn(n)


async def test_a_broker_that_lost_everything_is_no_error(broker: Any) -> None:
    run = Run(5, 40)
    store = store_of(broker, run)
    await put(broker, store, run, 1, 20)
    await broker.redis.flushall()
    reader = LedgerReader(broker)
    assert (await reader.engines(), await reader.spans(ENGINE), await reader.newest(ENGINE)) == ([], [], None)
    assert await reader.records(ENGINE, 5, 1, 20) == []
    await put(broker, store, run, 21, 40)
    assert await reader.engines() == [ENGINE]
    assert await numbers(reader, 5, 17, 40) == list(range(17, 41))
    blocks = await reader.block_map(ENGINE, 5, 30)
    assert blocks is not None
    assert blocks.to_json() == run.drawn(30)


async def test_memory_bounds(broker: Any) -> None:
    run = Run(5, 64)
    await put(broker, store_of(broker, run, iterations=30), run, 1, 64)
    kept = await broker.segments(ENGINE)
    assert [info.first for info in kept] == [41, 49, 57]
    sizes = sum(info.size for info in kept)
    keys = [key async for key in broker.redis.scan_iter("*ledger-segment:*")]
    assert len(keys) == 3
    assert all([0 < await broker.redis.ttl(key) <= SEGMENT_KEPT for key in keys])
    await broker.keep_segment(ENGINE, SegmentInfo(5, 65, 65, 10), b"x" * 10, 1000, sizes)
    assert [info.first for info in await broker.segments(ENGINE)] == [49, 57, 65]


async def test_short_segments_are_closed_in_time(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(5, 3)
    store = store_of(broker, run)
    await put(broker, store, run, 1, 3)
    assert await broker.segments(ENGINE) == []
    monkeypatch.setattr(ledger_store, "OLDEST_OPEN", -1.0)
    await store.do_due()
    assert [info[:3] for info in await broker.segments(ENGINE)] == [(5, 1, 3)]


class FullDisk(LedgerDisk):
    full = True

    def write(self, engine: str, info: SegmentInfo, data: bytes) -> None:
        if FullDisk.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(engine, info, data)


async def test_a_full_disk_is_said_once_and_stops_nothing(
    broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ledger_store, "LedgerDisk", FullDisk)
    monkeypatch.setattr(FullDisk, "full", True)
    run = Run(5, 32)
    store = store_of(broker, run, folder=tmp_path)
    with caplog.at_level(logging.WARNING, "batchscope.engine"):
        await put(broker, store, run, 1, 24)
    said = [message for message in caplog.messages if message.startswith("ledger_not_written")]
    assert said == ["ledger_not_written: No space left on device; iterations are kept in the broker alone"]
    assert await numbers(LedgerReader(broker, tmp_path), 5, 1, 24) == list(range(1, 25))
    FullDisk.full = False
    await put(broker, store, run, 25, 32)
    assert [info.first for info in LedgerDisk(tmp_path).segments(ENGINE)] == [25]


async def test_a_folder_that_cannot_be_read_stops_nothing(broker: Any, tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    folder.write_text("a file where a folder should be")
    run, later = Run(5, 24), Run(6, 8)
    await put(broker, store_of(broker, run, folder=folder), run, 1, 24)
    await put(broker, store_of(broker, later, folder=folder), later, 1, 8)
    assert await numbers(LedgerReader(broker, folder), 5, 1, 24) == list(range(1, 25))
    assert [span.epoch for span in await LedgerReader(broker, folder).spans(ENGINE)] == [5, 6]


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    disk, info = LedgerDisk(tmp_path / "ledger"), SegmentInfo(1, 2, 3, 4)
    assert (disk.engines(), disk.segments("e"), disk.read("e", info), disk.prune(1, 1)) == ([], [], None, 0)
    disk.write("e", info, b"four")
    assert (disk.engines(), disk.segments("e"), disk.read("e", info)) == (["e"], [info], b"four")
    (tmp_path / "ledger" / "e" / "5-6-7.segment").mkdir()  # nothing can take its name
    with pytest.raises(OSError, match="directory"):
        disk.write("e", SegmentInfo(5, 6, 7, 4), b"four")
    assert sorted(path.name for path in (tmp_path / "ledger" / "e").iterdir()) == ["1-2-3.segment", "5-6-7.segment"]


@pytest.mark.parametrize("name", ["..", "../../etc", "a/b", ".", "é %", "x" * 80])
def test_an_engine_may_have_any_name(name: str, tmp_path: Path) -> None:
    disk, info = LedgerDisk(tmp_path / "ledger"), SegmentInfo(1, 2, 3, 4)
    disk.write(name, info, b"four")
    assert (disk.engines(), disk.segments(name), disk.read(name, info)) == ([name], [info], b"four")
    assert [path.name for path in tmp_path.iterdir()] == ["ledger"]
    assert len(list((tmp_path / "ledger").iterdir())) == 1


def test_the_disk_keeps_days_and_bytes_of_all_engines(tmp_path: Path) -> None:
    disk, now = LedgerDisk(tmp_path), time.time()
    for age, engine in enumerate(["a", "b", "a", "b", "a"]):  # days
        disk.write(engine, SegmentInfo(1, 10 - age, 10 - age, 0), b"x" * 100)
        (file,) = tmp_path.glob(f"{engine}/1-{10 - age}-*.segment")
        os.utime(file, (now - age * 86400, now - age * 86400))
    stale, fresh = tmp_path / "a" / ".1.draft", tmp_path / "a" / ".2.draft"
    for draft, age in ((stale, 7200), (fresh, 10)):
        draft.write_bytes(b"")
        os.utime(draft, (now - age, now - age))
    assert disk.prune(days=3.5, most_bytes=10_000) == 1
    assert (stale.exists(), fresh.exists()) == (False, True)
    assert disk.prune(days=3.5, most_bytes=250) == 2
    assert [info.first for info in disk.segments("a")] == [10]
    assert [info.first for info in disk.segments("b")] == [9]


async def test_a_damaged_file_is_a_gap(broker: Any, tmp_path: Path) -> None:
    run = Run(5, 40)
    await put(broker, store_of(broker, run, folder=tmp_path), run, 1, 40)
    await broker.redis.flushall()
    (file,) = tmp_path.glob("*/5-9-16.segment")
    file.write_bytes(file.read_bytes()[:-9])
    reader = LedgerReader(broker, tmp_path)
    assert await numbers(reader, 5, 1, 40) == [*range(1, 9), *range(17, 41)]
    assert await reader.block_map(ENGINE, 5, 12) is None
    assert await reader.block_map(ENGINE, 5, 17) is not None


async def test_old_files_go_without_new_ones(broker: Any, tmp_path: Path) -> None:
    run = Run(5, 16)
    await put(broker, store_of(broker, run, folder=tmp_path), run, 1, 16)
    old, new = sorted(tmp_path.glob("*/*.segment"))
    os.utime(old, (time.time() - 9 * 86400,) * 2)
    await store_of(broker, run, folder=tmp_path).do_due()
    assert list(tmp_path.glob("*/*.segment")) == [new]


async def test_no_folder_no_files(broker: Any, tmp_path: Path) -> None:
    run = Run(5, 16)
    await put(broker, store_of(broker, run, folder=tmp_path, disk=0), run, 1, 16)
    assert list(tmp_path.iterdir()) == []
    assert await numbers(LedgerReader(broker), 5, 1, 16) == list(range(1, 17))


async def test_a_record_that_makes_no_sense_ends_the_keeping_and_nothing_else(
    broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(5, 8)
    store = store_of(broker, run)
    await put(broker, store, run, 1, 3)
    store.add(replace(run.records[3], blocks=((99, 1, 0, "r1"),)), run.lines[3])
    store.add(run.records[4], run.lines[4])
    assert [message.partition(":")[0] for message in caplog.messages] == ["ledger_failed"]
    assert await numbers(LedgerReader(broker), 5, 1, 3) == [1, 2, 3]


async def test_records_of_another_version_are_not_adopted(broker: Any, caplog: pytest.LogCaptureFixture) -> None:
    await broker.append_ledger(ENGINE, [b'{"n": 1, "epoch": 3, "kv": {"total": 4}}'])
    run = Run(5, 8)
    await put(broker, store_of(broker, run), run, 1, 8)
    assert caplog.messages == ["ledger_not_adopted: KeyError"]
    assert [info[:3] for info in await broker.segments(ENGINE)] == [(5, 1, 8)]
    assert await LedgerReader(broker).block_map(ENGINE, 3, 1) is None


async def test_an_engine_that_stops_closes_its_segment(broker: Any, client: Any, start_worker: Any) -> None:
    worker = start_worker(name=ENGINE)
    await client.submit(Submission("r1", {"max_tokens": 100}, prompt="one two three four"))
    events = [event async for event in client.follow("r1")]
    assert events[-1].finish_reason == "stop"
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    [info] = await broker.segments(ENGINE)
    assert info.first == 1
    assert await numbers(client.ledger, info.epoch, 1, info.last) == list(range(1, info.last + 1))


async def test_an_engine_that_is_killed_loses_nothing(broker: Any, client: Any, start_worker: Any) -> None:
    """The next one of its name closes what it left, from the stream."""
    first = start_worker(name=ENGINE)
    await client.submit(Submission("r1", {"max_tokens": 100}, prompt="one two three four"))
    assert [event async for event in client.follow("r1")][-1].finish_reason == "stop"
    await asyncio.sleep(1.0)  # an epoch is a second; and the stream has the last record by now
    first.close()
    [span] = await client.ledger.spans(ENGINE)
    assert await client.ledger.closed_spans(ENGINE) == []
    start_worker(name=ENGINE)
    async with asyncio.timeout(20):
        while await client.ledger.closed_spans(ENGINE) != [span]:
            await asyncio.sleep(0.05)
    assert await numbers(client.ledger, span.epoch, 1, 99) == list(range(1, span.last + 1))
