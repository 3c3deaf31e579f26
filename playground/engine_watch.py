"""What the supervisor does beside starting and stopping: an engine that hangs is killed, and faults are counted.

Knows: the engine's process and its heartbeat. Must not know: when an engine hangs (watchdog.py), what becomes of it
then: it is started again like one that crashed, and goes on from the logs. Both run until they are cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time

from inference.serving.broker import UNREACHABLE, Broker, ResponseError
from inference.serving.faults import count_faults
from inference.serving.tally import Tally
from inference.serving.totals_store import WEB, TotalsStore
from playground.processes import Child
from playground.watchdog import Watchdog

log = logging.getLogger("batchscope.serve")

EVERY = 0.5  # seconds


async def watch_engine(child: Child, name: str, broker: Broker, hang_timeout: float) -> None:
    """name: under which its heartbeat stands."""
    pid, watchdog = None, Watchdog(hang_timeout)
    while True:
        await asyncio.sleep(EVERY)
        if child.pid != pid:
            pid, watchdog = child.pid, Watchdog(hang_timeout)
        if pid is None or child.is_stopping:
            continue
        try:
            statuses = (await broker.statuses()).values()
        except (*UNREACHABLE, ResponseError):
            watchdog.unknown()
            continue
        status = next((s for s in statuses if (s.name, s.pid) == (name, pid)), None)
        if reason := watchdog.judge(time.monotonic(), status, child.is_stopped):
            log.error("engine_hung: %s; process %d is killed", reason, pid)
            child.replace()


async def count_own_faults(broker: Broker) -> None:
    """This process's, like what its children warn of. They go to the broker as soon as there is one."""
    tally = Tally()
    store = TotalsStore(broker, f"serve-{os.getpid()}-{time.time_ns()}")
    counter = count_faults(tally, WEB)
    try:
        while True:
            with contextlib.suppress(*UNREACHABLE, ResponseError):
                await store.flush(tally)
            await asyncio.sleep(EVERY)
    finally:
        logging.getLogger().removeHandler(counter)
