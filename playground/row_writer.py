"""From the broker's feed to the rows of requests: who runs, how each ended, what its receipt says in the end.

Knows: which requests this process watches, and what of them is to be written next. Must not know: sockets, HTTP, who
may see what. All changes that come while a transaction is under way are written in the next one.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from channels.db import database_sync_to_async
from django.db import DatabaseError

from inference.serving.client import UNREACHABLE, EngineClient, Event
from inference.serving.messages import Delta, Finish
from playground import rows

log = logging.getLogger("batchscope.gateway")

RECEIPTS_EVERY = 0.5  # seconds between a finish and its row's last correction, at most
ROW_WITHIN = 2.0  # seconds that a follower waits for the row's final state before it hands on the finish
AGAIN_AFTER = 0.5  # seconds


class RowWriter:
    """ended: called with what a transaction has ended, so that each end is counted once."""

    def __init__(self, client: EngineClient, ended: Callable[[list[rows.Ended]], Awaitable[None]]) -> None:
        self._client, self._ended = client, ended
        self._watched: dict[str, asyncio.Event] = {}  # not final as far as we know; set once the row is
        self._running: set[str] = set()  # rows to be marked so
        self._begun: dict[str, Delta] = {}  # first deltas of those, as far as they were seen
        self._marked: set[str] = set()
        self._finished: set[str] = set()  # rows whose log has a finish
        self._receipts: dict[str, dict[str, Any]] = {}  # of finishes that were handed on since the rows were written
        self._changed = asyncio.Event()

    def watch(self, request_id: str) -> asyncio.Event:
        """From now on write what becomes of it. Set once its row has its final state."""
        return self._watched.setdefault(request_id, asyncio.Event())

    def is_watched(self, request_id: str) -> bool:
        return request_id in self._watched

    def on_event(self, event: Event) -> None:
        """Of the feed, of whichever request."""
        request_id = event.request_id
        if request_id not in self._watched:
            return
        if isinstance(event, Finish):
            self._finished.add(request_id)
        elif request_id in self._marked:
            return
        else:
            self._marked.add(request_id)
            self._running.add(request_id)
            self._begun[request_id] = event
        self._changed.set()

    def has_begun(self, request_id: str) -> None:
        """Its log says so, though nobody here saw it."""
        self._running.add(request_id)
        self._changed.set()

    def has_finished(self, request_id: str) -> None:
        """Its log has a finish."""
        self._finished.add(request_id)
        self._changed.set()

    async def until_final(self, request_id: str, final: asyncio.Event) -> None:
        """Until its row has its final state, but not for ever: a database that is away keeps no answer back."""
        self.has_finished(request_id)
        try:
            await asyncio.wait_for(final.wait(), ROW_WITHIN)
        except TimeoutError:
            log.warning("row_late: request %s is over, its row is not written yet", request_id)

    def correct(self, request_id: str, receipt: dict[str, Any]) -> None:
        """The receipt once its last frame is on its way. The first one counts."""
        if request_id not in self._receipts:
            self._receipts[request_id] = receipt
            asyncio.get_running_loop().call_later(RECEIPTS_EVERY, self._changed.set, context=contextvars.Context())

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            running, self._running = self._running, set()
            begun, self._begun = self._begun, {}
            finished, self._finished = self._finished, set()
            receipts, self._receipts = self._receipts, {}
            try:
                await self._write(running - finished, begun, finished, receipts)
            except (DatabaseError, *UNREACHABLE) as error:
                log.warning("rows_delayed: %d, %s", len(finished) + len(running), type(error).__name__)
                self._running |= running
                self._begun = {**begun, **self._begun}
                self._finished |= finished
                self._receipts = {**receipts, **self._receipts}
                await asyncio.sleep(AGAIN_AFTER)
                self._changed.set()

    async def _write(
        self, running: set[str], begun: dict[str, Delta], finished: set[str], receipts: dict[str, dict[str, Any]]
    ) -> None:
        outcomes = await self._outcomes(finished)
        await self._ended(await database_sync_to_async(rows.apply)(running, outcomes, begun))
        if receipts:
            await database_sync_to_async(rows.correct)(receipts)
        for outcome in outcomes:
            self._settle(outcome.finish.request_id)

    async def _outcomes(self, request_ids: set[str]) -> list[rows.Outcome]:
        outcomes = []
        for request_id in request_ids:
            found = await self._client.log(request_id)
            if found.finish is not None:  # else the broker lost it meanwhile, and it runs again
                outcomes.append(rows.Outcome(found.finish, found.text, found.claims))
        return outcomes

    def _settle(self, request_id: str) -> None:
        self._marked.discard(request_id)
        if final := self._watched.pop(request_id, None):
            final.set()
