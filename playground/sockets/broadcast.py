"""What all viewers of the scheduler in this process are sent, made once: snapshots and frames of iterations.

Knows: engines' statuses, their records, who watches. Must not know: ASGI, rights.
One task serves all viewers, in rounds. The more there are, the longer a round takes and the more iterations a frame
has, so that their cost to this machine's other work stays small (R16 of the promises); each gets all that happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from inference.serving.client import UNREACHABLE, RecordLine, RecordName, end_tasks
from inference.serving.messages import EngineStatus
from playground.gateway import get_gateway
from playground.sockets import snapshot
from playground.sockets.snapshot import Snapshot, in_frames, iterations_frame, take_snapshot

FRAME_INTERVAL = 0.05  # seconds: 20 frames a second at most
PACE = 0.02  # seconds that each further viewer adds to that
LONGEST_ROUND = 1.0  # seconds
STATUS_INTERVAL = 0.5  # seconds: as often as an engine renews its status
KEPT = 300  # records of an engine, for whoever has a snapshot that is a little older

Send = Callable[[Sequence[str]], Awaitable[None]]  # takes frames that belong together, and never waits for a reader
NEVER = RecordName(-1, -1)


class _Viewer:
    def __init__(self, send: Send) -> None:
        self.send = send
        self.last: dict[str, RecordName] | None = None  # newest record sent, by engine; None: no snapshot yet
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def tell(self, frames: Sequence[str]) -> None:
        """One that can't be sent to ends; the others don't."""
        try:
            await self.send(frames)
        except Exception as error:
            self.end(error)

    def end(self, error: Exception) -> None:
        if not self.over.done():
            self.over.set_exception(error)


class Broadcast:
    """`view` for each viewer. The work begins with the first and ends with the last."""

    def __init__(self) -> None:
        self._viewers: set[_Viewer] = set()
        self._joined = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def view(self, send: Send) -> None:
        """Send this viewer what there is to see, until cancelled. Raises what ended the work for all."""
        viewer = _Viewer(send)
        self._viewers.add(viewer)
        self._joined.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._serve(), name="scheduler-broadcast")
        try:
            await viewer.over
        finally:
            self._viewers.discard(viewer)
            if not self._viewers and self._task is not None:
                task, self._task = self._task, None
                await end_tasks([task])

    async def _serve(self) -> None:
        try:
            await self._rounds()
        except Exception as error:
            for viewer in self._viewers:
                viewer.end(error)

    async def _rounds(self) -> None:
        records = _Newest()
        seen: dict[str, tuple[Any, ...]] | None = None
        engines: list[EngineStatus] = []
        looked = 0.0
        while True:
            self._joined.clear()
            fresh = [viewer for viewer in self._viewers if viewer.last is None]
            if fresh or time.monotonic() - looked >= STATUS_INTERVAL:
                engines = await _engines()
                looked = time.monotonic()
                before, seen = seen, {engine.name: _state(engine) for engine in engines}
                others = [] if seen == before else [viewer for viewer in self._viewers if viewer.last is not None]
                for viewers, known in ((others, before or {}), (fresh, {})):
                    if viewers:
                        await _send_snapshot(await take_snapshot(engines, known), viewers)
            await records.read(engines)
            await self._send_new(records)
            await self._pause()

    async def _pause(self) -> None:
        """Until the next round, or until somebody comes who has seen nothing yet."""
        loop = asyncio.get_running_loop()
        most = STATUS_INTERVAL if len(self._viewers) < 2 else LONGEST_ROUND
        wait = min(most, FRAME_INTERVAL + PACE * (len(self._viewers) - 1))
        timer = loop.call_later(wait, self._joined.set)
        try:
            await self._joined.wait()
        finally:
            timer.cancel()

    async def _send_new(self, records: _Newest) -> None:
        for engine, lines in records.kept.items():
            made: dict[RecordName, list[str]] = {}  # frames by the record that they go on from
            for viewer in list(self._viewers):
                last = (viewer.last or {}).get(engine, NEVER)
                if viewer.last is None or not lines or lines[-1].name <= last:
                    continue
                if last not in made:
                    made[last] = _frames(engine, lines, last)
                viewer.last[engine] = lines[-1].name
                await viewer.tell(made[last])


class _Newest:
    """The newest records of each engine that there is: who comes later is not told of one that has gone."""

    def __init__(self) -> None:
        self._feed = get_gateway().client.ledger_feed()
        self.kept: dict[str, deque[RecordLine]] = {}

    async def read(self, engines: Iterable[EngineStatus]) -> None:
        names = [engine.name for engine in engines]
        self.kept = {name: lines for name, lines in self.kept.items() if name in names}
        with contextlib.suppress(*UNREACHABLE):
            for engine, lines in (await self._feed.read(names)).items():
                self.kept.setdefault(engine, deque(maxlen=KEPT)).extend(lines)


async def _engines() -> list[EngineStatus]:
    try:
        return await get_gateway().client.engines()
    except UNREACHABLE:
        return []


def _state(engine: EngineStatus) -> tuple[Any, ...]:
    """What of an engine is news."""
    # Grows by one each time the iterations that an engine has learnt its prices from have doubled.
    learnt = int(engine.costs.get("observed", 0)).bit_length()
    return (
        engine.state,
        engine.epoch,
        engine.settings,
        engine.paused,
        engine.slow_ms,
        engine.refused,
        learnt,
    )


async def _send_snapshot(taken: Snapshot, viewers: Iterable[_Viewer]) -> None:
    for viewer in viewers:
        if viewer.last is None:  # a later snapshot may be overtaken by newer records: then none is skipped
            viewer.last = dict(taken.newest)
        await viewer.tell(taken.frames)


def _frames(engine: str, lines: Iterable[RecordLine], last: RecordName) -> list[str]:
    """Of the records after `last`."""
    new = [line.data for line in lines if line.name > last]
    return [iterations_frame(engine, part) for part in in_frames(new, snapshot.RECORDS_BYTES)]


@lru_cache(maxsize=1)
def get_broadcast() -> Broadcast:
    """This process's."""
    return Broadcast()
