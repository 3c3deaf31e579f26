"""Between this process's counts and the broker: what happened here goes there twice a second, and a scrape asks it.

Knows: when. Must not know: Redis commands, Django, what is counted. One Beat in each web process, on its one
event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections import Counter

from inference.serving.client import UNREACHABLE, WEB, EngineClient, ResponseError, Tally, TotalsStore, count_faults
from playground.metrics.exposition import Reading

EVERY = 0.5  # seconds
GAUGES_EVERY = 1.0  # seconds, where they don't change


class Beat:
    """Let `run` run; `read` whenever somebody scrapes."""

    def __init__(self, client: EngineClient, tally: Tally, sockets: Counter[str], hang_timeout: float) -> None:
        process = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._client, self._tally, self._sockets, self._hang_timeout = client, tally, sockets, hang_timeout
        self._store = TotalsStore(client.broker, process)
        self._told: dict[str, float] = {}
        self._told_at = 0.0

    async def run(self) -> None:
        faults = count_faults(self._tally, WEB)
        try:
            while True:
                try:
                    await self.send()
                except (*UNREACHABLE, ResponseError):  # the feed's reader says so in the log
                    self._told_at = 0.0
                await asyncio.sleep(EVERY)
        finally:
            logging.getLogger().removeHandler(faults)

    async def send(self) -> None:
        """Bring the broker up to date with this process."""
        await self._store.flush(self._tally)
        gauges = {kind: float(count) for kind, count in self._sockets.items()}
        if gauges != self._told or time.monotonic() - self._told_at >= GAUGES_EVERY:
            await self._store.put_gauges(gauges)
            self._told, self._told_at = gauges, time.monotonic()

    async def read(self) -> Reading:
        """What is true now; of other web processes, half a second ago at most. Raises one of UNREACHABLE."""
        await self.send()
        engines = await self._client.engines()
        return Reading(
            engines,
            await self._store.totals(engine.name for engine in engines),
            await self._store.gauges(),
            await self._store.unclaimed(),
            time.time(),
            self._hang_timeout,
        )
