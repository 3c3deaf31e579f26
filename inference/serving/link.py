"""The engine process's broker thread: one asyncio loop that takes requests in (intake.py) and carries outputs out
(outbox.py).

Knows: the broker, threads' borders, the heartbeat, what staff asks. Must not know: torch, the engine's inside. The step
thread hands outputs over with `publish` and gets orders through a queue; neither waits for the other, save where
outputs pile up because the broker is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from inference.serving.broker import UNREACHABLE, ResponseError, end_tasks
from inference.serving.broker_engine import EngineBroker
from inference.serving.intake import Identity, Intake
from inference.serving.ledger_store import LedgerKeep, LedgerStore
from inference.serving.logs import Outgoing
from inference.serving.messages import Control, EngineStatus, Queued
from inference.serving.orders import Order, Refuse, Stop
from inference.serving.outbox import Outbox
from inference.serving.prompts import Tokenizer
from inference.serving.totals import EngineTotals
from inference.serving.totals_store import TotalsStore

log = logging.getLogger("batchscope.engine")

HEARTBEAT = 0.5  # seconds
AT_ONCE = 0.2  # seconds at least between two of them, where the second has news
IDLE_EVERY = 0.05  # seconds between looks at whether a process that drains may end
BACK_OFF = (0.05, 2.0)  # seconds between tries while the broker is away: first, most


class BrokerLink:
    """Start it, `serve` a tokenizer once there is an engine, `publish` each step, `close` it.

    status: replaced whole by whoever knows better; a read sees one or the other. Its epoch is asked of the broker where
    it has none.
    """

    def __init__(
        self,
        url: str,
        name: str,
        consumer: str,
        orders: SimpleQueue[Order],
        status: EngineStatus,
        keep: LedgerKeep | None = None,
    ) -> None:
        self.totals = EngineTotals()
        self._status = status
        self._name, self._consumer, self._orders = name, consumer, orders
        self._epoch: Future[int] = Future()
        if status.epoch:
            self._epoch.set_result(status.epoch)
        self._thread = threading.Thread(target=self._run, name="broker", daemon=True)
        self._loop = asyncio.new_event_loop()
        self._serving: asyncio.Future[tuple[Tokenizer, int]] = self._loop.create_future()
        self._broker = EngineBroker(url)
        self._ledger = LedgerStore(self._broker, name, status.epoch, keep or LedgerKeep())
        self._counted = TotalsStore(self._broker, consumer)
        self._outbox = Outbox(
            self._loop, self._broker, name, self._ledger, self._settle, self.totals, self._flush_totals
        )
        identity = Identity(name, consumer, self._known_epoch)
        self._intake = Intake(self._broker, identity, orders, self._serving, self._outbox.put, self.totals)
        self._hurry = asyncio.Event()  # the next heartbeat is not to wait
        self._away = False

    # Called from the step thread

    @property
    def status(self) -> EngineStatus:
        return self._status

    @status.setter
    def status(self, status: EngineStatus) -> None:
        """What has changed for whoever watches is told at once."""
        before, self._status = self._status, status
        if status.state == "ready" and before.state != "ready":
            self.totals.started()
        if _news(status) != _news(before):
            self._loop.call_soon_threadsafe(self._hurry.set)

    def start(self) -> None:
        self._thread.start()

    def epoch(self) -> int:
        """Of this process. The broker gives it out, and while that is away this waits: nothing could be done anyway."""
        return self._epoch.result()

    def serve(self, tokenizer: Tokenizer, seats: int) -> None:
        """From now on take requests in."""
        self._loop.call_soon_threadsafe(self._serving.set_result, (tokenizer, seats))

    def publish(self, items: Sequence[Outgoing], record: Any = None) -> None:
        """Hand over a step's events and its ledger record. Waits only where far too many are under way already."""
        self._outbox.publish(items, record)

    def tell(self, news: Sequence[Queued]) -> None:
        """Hand over news for those who wait. They are lost where the broker is away: newer ones come."""
        self._outbox.tell(news)

    def drain(self, seconds: float) -> None:
        """Take nothing new in. A Stop is ordered once all that was taken is over and out, or after so many seconds."""
        self._loop.call_soon_threadsafe(lambda: self._tasks.append(self._loop.create_task(self._drain(seconds))))

    def announce(self, status: EngineStatus, expiry: float, timeout: float = 2.0) -> None:
        """Set a status that outlives this process, such as why it could not start."""
        self._call(self._announce(status, expiry), timeout)

    def close(self, timeout: float = 3.0) -> None:
        """Stop taking, publish what is there, give claims back, say that this consumer is gone."""
        self._call(self._close(), timeout)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout)

    def _call(self, work: Coroutine[Any, Any, None], timeout: float) -> None:
        try:
            asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)
        except (*UNREACHABLE, ResponseError) as error:
            log.warning("broker_unreachable: %s", type(error).__name__)

    # In the broker thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._tasks = [
            self._loop.create_task(self._forever(work), name=work.__name__)
            for work in (
                *(self._beat, self._outbox.send, self._intake.read, self._control, self._intake.watch_others),
                self._ledger.archive,
            )
        ]
        self._loop.run_forever()
        self._loop.close()

    async def _announce(self, status: EngineStatus, expiry: float) -> None:
        await end_tasks(self._tasks)  # a heartbeat under way could come later and say something else
        await self._find_epoch()
        self.status = replace(status, epoch=self._known_epoch())
        await self._broker.beat(self._consumer, self.status, expiry)

    async def _drain(self, seconds: float) -> None:
        self._intake.take_no_more()
        log.info("draining: %d requests go on, %.0f s at most", len(self._intake.held), seconds)
        until = time.monotonic() + seconds
        while not self._intake.is_idle and time.monotonic() < until:
            await asyncio.sleep(IDLE_EVERY)
        self._orders.put(Stop())

    async def _close(self) -> None:
        await end_tasks(self._tasks)
        await self._intake.stop()
        await self._outbox.empty()
        await self._ledger.close()
        await self._flush_totals()
        await self._intake.give_back()
        await self._broker.stop_beating(self._consumer)
        await self._broker.close()

    async def _forever(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Repeat `work`; while the broker is away try again after a growing pause."""
        pause, most = BACK_OFF
        while True:
            try:
                await work()
                pause = BACK_OFF[0]
                self._away = False
            except UNREACHABLE as error:
                if not self._away:  # one line for each time it goes away, not one for each task and try
                    log.warning("broker_unreachable: %s", type(error).__name__)
                self._away = True
                self._intake.broker_was_away()
                await asyncio.sleep(pause)
                pause = min(pause * 2, most)
            except ResponseError as error:
                log.error("broker_refused: %s, %s", work.__name__.strip("_"), error)
                await asyncio.sleep(most)

    async def _beat(self) -> None:
        await self._find_epoch()  # before anything is said of this process
        self._hurry.clear()
        await self._flush_totals()
        await self._broker.beat(self._consumer, self.status)
        await asyncio.sleep(AT_ONCE)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), HEARTBEAT - AT_ONCE)

    async def _flush_totals(self) -> None:
        await self._counted.flush(self.totals, self._name, self.status.model)

    async def _find_epoch(self) -> None:
        """More than that of any process of this name before: as far as the broker knows of them, or the disk."""
        if self._epoch.done():
            return
        kept = await asyncio.to_thread(self._ledger.newest_on_disk)
        epoch = await self._broker.next_epoch(self._name, max(int(time.time()), kept + 1))
        self.status, self._ledger.epoch = replace(self.status, epoch=epoch), epoch
        self._epoch.set_result(epoch)

    def _known_epoch(self) -> int:
        return self._epoch.result() if self._epoch.done() else 0

    def _settle(self, items: Sequence[Outgoing], refused: set[str]) -> None:
        self._intake.settle(items, refused)
        if self.totals.is_due:
            self.totals.is_due = False
            self._hurry.set()

    # What staff asks

    async def _control(self) -> None:
        after = await self._broker.control_end()  # before anyone can see that this engine is ready and ask for anything
        await asyncio.shield(self._serving)
        asked = await self._broker.cancelled_among(list(self._intake.held))  # while nobody listened
        self._intake.cancel(asked)
        while True:
            after, request_ids, controls = await self._broker.read_control(after)
            self._intake.cancel(request_ids)
            self._order(controls)

    def _order(self, controls: Sequence[bytes]) -> None:
        for body in controls:
            try:
                control = Control.decode(body)
            except (ValueError, TypeError, AttributeError):  # no JSON, no object, no engine or action named
                text = f"a control of {len(body)} bytes came that can't be read: it is no JSON object with an engine"
                self._orders.put(Refuse("", f"{text} and an action"))
                continue
            if control.engine == self._name:
                self._orders.put(control)


def _news(status: EngineStatus) -> tuple[Any, ...]:
    """What is not to wait for the next heartbeat."""
    return status.state, status.busy, status.paused, status.running, status.waiting, status.draining
