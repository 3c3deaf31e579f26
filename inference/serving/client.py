"""The web side of the broker: submit, cancel, follow, watch. One client per web process, all on one asyncio loop.

Knows: logs and the feed. Must not know: torch, the engine, Django, sockets, the database.

A request's log is the truth, the feed a live copy of all logs. A follower reads the log first and then takes the feed's
events in order of `seq`; whatever the feed lacks or repeats (a slow reader, a broken connection, a broker that lost its
state) is mended by reading the log again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from pathlib import Path
from typing import Any

from inference.serving.broker import UNREACHABLE, ResponseError, end_tasks
from inference.serving.broker_web import WebBroker
from inference.serving.faults import count_faults
from inference.serving.ledger_feed import LedgerFeed
from inference.serving.ledger_reader import BlockMap, LedgerReader, Span
from inference.serving.logs import Event, Log, News
from inference.serving.messages import Control, Delta, EngineStatus, Finish, Queued, Submission
from inference.serving.record_lines import RecordLine, RecordName, line_of
from inference.serving.tally import BUCKETS, SEPARATOR, SUM, Tally
from inference.serving.totals_store import WEB, TotalsStore

log = logging.getLogger("batchscope.client")

BACK_OFF = (0.05, 1.0)  # seconds between tries while the broker is away: first, most
QUIET = 10.0  # seconds without an event until a follower reads the log again, to be sure
# What a slow follower holds is bounded, and a socket may have some twenty followers that are slow at once.
FOLLOWER_QUEUE = 32  # events that may be pending; beyond, the log is read instead
LOG_PART = 32  # entries of a log that are read at once
LINE_KEPT = 4096  # waiting requests whose place is remembered for who begins to follow


class _Mailbox:
    """What the feed has for one follower. `stale` says that the log must be read: events are missing here. `read_to` is
    the id of the entry up to which that was done once and need not be done again."""

    def __init__(self) -> None:
        self._events: deque[News] = deque()
        self._arrived = asyncio.Event()
        self.stale = True
        self.read_to = b""

    def put(self, event: News) -> None:
        if self.stale:  # the log that will be read has it
            return
        if len(self._events) >= FOLLOWER_QUEUE:
            self._events.clear()
            self.stale = True
        else:
            self._events.append(event)
        self._arrived.set()

    def begin_anew(self) -> None:
        """The log that was read may be gone, and another one be there."""
        self._events.clear()
        self.stale = True
        self.read_to = b""
        self._arrived.set()

    def take(self) -> list[News]:
        events = list(self._events)
        self._events.clear()
        self._arrived.clear()
        return events

    async def wait(self, timeout: float) -> bool:
        try:
            await asyncio.wait_for(self._arrived.wait(), timeout)
        except TimeoutError:
            return False
        return True


class EngineClient:
    """See the methods. All raise one of broker.UNREACHABLE while the broker is away, save `follow`, which waits until
    it is back.

    ledger: all iterations that are kept.  ledger_folder: where engines of this machine keep theirs, too.
    """

    def __init__(self, url: str, ledger_folder: Path | None = None) -> None:
        self.broker = WebBroker(url)
        self.ledger = LedgerReader(self.broker, ledger_folder)
        self._mailboxes: dict[str, set[_Mailbox]] = {}
        self._engines: list[EngineStatus] = []
        self._asked_at = -math.inf
        self._on_event: list[Callable[[Event], None]] = []
        self._line: OrderedDict[str, Queued] = OrderedDict()  # the newest word of each that waits
        self._on_reconnect: list[Callable[[], None]] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cursor = ""

    async def start(self) -> None:
        """Start reading the feed. The broker may be away; the client keeps trying."""
        self._spawn("feed", self._read_feed)

    async def close(self) -> None:
        await end_tasks(self._tasks.values())
        self._tasks.clear()
        await self.broker.close()

    def on_event(self, callback: Callable[[Event], None]) -> None:
        """Call this with each event of the feed, of whichever request. It must return at once."""
        self._on_event.append(callback)

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call this each time the feed is read anew: events may have been missed, and logs may be gone."""
        self._on_reconnect.append(callback)

    async def submit(self, submission: Submission) -> bool:
        """Queue a request. False where it was queued already; nothing happens twice."""
        return await self.broker.submit(submission)

    async def cancel(self, request_id: str) -> str:
        """Ask for the end of a request: "asked", "finished" (it is over, perhaps by this), or "missing"."""
        return await self.broker.cancel(request_id)

    async def control(self, control: Control) -> None:
        """Ask something of an engine. Its next status answers: what is so now, or a sentence that says why not."""
        await self.broker.control(control)

    async def log(self, request_id: str) -> Log:
        return await self.broker.log(request_id)

    async def exists(self, request_id: str) -> bool:
        return bool((await self.broker.log_ends([request_id]))[request_id])

    async def engines(self, max_age: float = 0.0) -> list[EngineStatus]:
        """One status for each engine that has a heartbeat, of its newest process where there are two. What was asked
        for within `max_age` seconds is not asked for again."""
        if time.monotonic() - self._asked_at >= max_age:
            newest: dict[str, EngineStatus] = {}
            for status in (await self.broker.statuses()).values():
                if status.name not in newest or status.epoch >= newest[status.name].epoch:
                    newest[status.name] = status
            self._engines = sorted(newest.values(), key=lambda status: status.name)
            self._asked_at = time.monotonic()
        return self._engines

    async def follow(self, request_id: str, after_seq: int = 0) -> AsyncGenerator[News]:
        """Deltas after `after_seq` and then the finish, without gap or repeat: from the log first, then live. Before
        the first delta, and only live, where the request stands in line.

        Where the broker has no log (yet, or any more) this waits for one.
        """
        mailbox = _Mailbox()
        self._mailboxes.setdefault(request_id, set()).add(mailbox)
        seq = after_seq
        told: Queued | None = None
        try:
            while True:
                live = not mailbox.stale
                for event in await self._next_events(request_id, mailbox):
                    if isinstance(event, Queued):
                        if not seq and event != told:
                            told = event
                            yield event
                        continue
                    if live and event.seq > seq + 1:
                        mailbox.begin_anew()
                        break
                    if isinstance(event, Finish):
                        yield event
                        return
                    if event.seq > seq:
                        seq = event.seq
                        yield event
                if not mailbox.stale and not await mailbox.wait(QUIET):
                    mailbox.begin_anew()
        finally:
            boxes = self._mailboxes[request_id]
            boxes.discard(mailbox)
            if not boxes:
                del self._mailboxes[request_id]

    async def _next_events(self, request_id: str, mailbox: _Mailbox) -> list[News]:
        if not mailbox.stale:
            return mailbox.take()
        start, mailbox.stale = mailbox.read_to, False
        found, read_to, has_more = await self._read_log(request_id, start)
        if mailbox.read_to or not mailbox.stale:  # else it is to be read anew
            mailbox.read_to = read_to or start
            mailbox.stale |= has_more
        if not start and not found.deltas and not found.finish and (place := self._line.get(request_id)):
            return [place]
        return [*found.deltas, *([found.finish] if found.finish else [])]

    async def newest_iterations(self, engine: str, count: int) -> list[RecordLine]:
        """The newest `count` iteration records of an engine, newest last."""
        return [line_of(record) for record in await self.broker.newest_records(engine, count)]

    def ledger_feed(self) -> LedgerFeed:
        """A reader of new iteration records, from about now on."""
        return LedgerFeed(self.broker)

    # Readers

    def _spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._tasks.get(name)
        if task is None or task.done():
            self._tasks[name] = asyncio.create_task(work(), name=f"client-{name}")

    async def _read_log(self, request_id: str, after: bytes) -> tuple[Log, bytes, bool]:
        pause, most = BACK_OFF
        while True:
            try:
                return await self.broker.log_part(request_id, after, LOG_PART)
            except (*UNREACHABLE, ResponseError):
                await asyncio.sleep(pause)
                pause = min(pause * 2, most)

    async def _read_feed(self) -> None:
        pause, most = BACK_OFF
        while True:
            try:
                if not self._cursor:
                    self._cursor = await self.broker.feed_end()
                    self._resync()
                self._cursor, events = await self.broker.read_feed(self._cursor)
                pause = BACK_OFF[0]
            except (*UNREACHABLE, ResponseError) as error:
                if pause == BACK_OFF[0]:  # one line each time it goes away
                    log.warning("broker_unreachable: %s", type(error).__name__)
                self._cursor = ""
                await asyncio.sleep(pause)
                pause = min(pause * 2, most)
                continue
            for event in events:
                self._deliver(event)

    def _resync(self) -> None:
        for boxes in self._mailboxes.values():
            for mailbox in boxes:
                mailbox.begin_anew()
        for callback in self._on_reconnect:
            callback()

    def _deliver(self, event: News) -> None:
        for mailbox in self._mailboxes.get(event.request_id, ()):
            mailbox.put(event)
        self._line.pop(event.request_id, None)
        if isinstance(event, Queued):
            self._line[event.request_id] = event
            if len(self._line) > LINE_KEPT:
                self._line.popitem(last=False)
            return
        for callback in self._on_event:
            callback(event)


__all__ = [
    "BUCKETS",
    "SEPARATOR",
    "SUM",
    "UNREACHABLE",
    "WEB",
    "BlockMap",
    "Control",
    "Delta",
    "EngineClient",
    "EngineStatus",
    "Event",
    "Finish",
    "LedgerReader",
    "Log",
    "News",
    "Queued",
    "RecordLine",
    "RecordName",
    "ResponseError",
    "Span",
    "Submission",
    "Tally",
    "TotalsStore",
    "count_faults",
    "end_tasks",
    "line_of",
]
