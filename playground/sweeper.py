"""Brings rows and logs together: what the broker lost is put back, and final states that nobody wrote are written.

Knows: unfinished rows, the ends of their logs. Must not know: sockets, who follows what. (R1 of the promises: accepted
means durable, whatever becomes of the broker.)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from channels.db import database_sync_to_async
from django.db import DatabaseError

from inference.serving.client import UNREACHABLE, EngineClient
from playground import journal, rows
from playground.models import InferenceRequest
from playground.row_writer import RowWriter

log = logging.getLogger("batchscope.gateway")

SWEEP_EVERY = 2.0  # seconds


class Sweeper:
    """Set `now` for a sweep out of turn."""

    def __init__(self, client: EngineClient, writer: RowWriter) -> None:
        self._client, self._writer = client, writer
        self.now = asyncio.Event()

    async def run(self) -> None:
        while True:
            self.now.clear()
            try:
                await self.sweep()
            except (DatabaseError, *UNREACHABLE) as error:
                log.warning("sweep_failed: %s", type(error).__name__)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.now.wait(), SWEEP_EVERY)

    async def sweep(self) -> None:
        unfinished = await database_sync_to_async(rows.unfinished)()
        if not unfinished:
            return
        ends = await self._client.broker.log_ends([row.request_id for row in unfinished])
        lost = [row.request_id for row in unfinished if not ends[row.request_id]]
        if lost:
            await self._put_back(lost)
        for row in unfinished:
            end = ends[row.request_id]
            if end == "finish":
                self._writer.has_finished(row.request_id)
            elif row.cancel_requested:
                await self._client.cancel(row.request_id)
            elif end in ("claim", "delta", "release") and row.state == InferenceRequest.State.ACCEPTED:
                self._writer.has_begun(row.request_id)

    async def _put_back(self, request_ids: list[str]) -> None:
        put_back = []
        for row in await database_sync_to_async(rows.by_ids)(request_ids):
            if await self._client.submit(rows.submission_of(row, put_back_at=time.time())):
                put_back.append(str(row.pk))
        if put_back:
            journal.put_back(put_back)
