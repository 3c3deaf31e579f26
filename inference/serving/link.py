"""The engine process's broker thread: one asyncio loop that takes requests in and carries outputs out.

Knows: the broker, claims, threads' borders. Must not know: torch, the engine's inside. The step thread hands outputs
over with `publish` and gets orders through a queue; neither waits for the other, save where outputs pile up because the
broker is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from queue import SimpleQueue
from typing import Any

import orjson

from inference.config import ParameterError
from inference.scheduling.receipt import unrun_receipt
from inference.scheduling.request import RequestRefused
from inference.serving.broker import UNREACHABLE, ResponseError, end_tasks
from inference.serving.broker_engine import EngineBroker, NoGroup
from inference.serving.ledger_store import LedgerKeep, LedgerStore
from inference.serving.logs import Claim, ClaimResult, Outgoing
from inference.serving.messages import Control, EngineStatus, Finish, Queued, Submission
from inference.serving.orders import Add, Cancel, Drop, DropAll, Order
from inference.serving.prompts import Tokenizer, is_slow, render
from inference.serving.turns import Turns

log = logging.getLogger("batchscope.engine")

MAX_ATTEMPTS = 3
HEARTBEAT = 0.5  # seconds
BACK_OFF = (0.05, 2.0)  # seconds between tries while the broker is away: first, most
READ_AT_ONCE = 64
QUEUE_ALONE = 4096  # requests held here while this is the only engine; with others, one batch's worth is left waiting
PUBLISH_AT_ONCE = 1024  # events in one call, roughly: a step is never split
MOST_STEPS_BEHIND = 2000  # then the step thread waits
MOST_NEWS = 4096  # of places in line; then the oldest are dropped


class BrokerLink:
    """Start it, `serve` a tokenizer once there is an engine, `publish` each step, `close` it."""

    def __init__(
        self,
        url: str,
        name: str,
        consumer: str,
        orders: SimpleQueue[Order],
        status: EngineStatus,
        keep: LedgerKeep | None = None,
    ) -> None:
        self.status = status  # replaced whole by whoever knows better; a read sees one or the other
        self._name, self._consumer, self._orders = name, consumer, orders
        self._thread = threading.Thread(target=self._run, name="broker", daemon=True)
        self._loop = asyncio.new_event_loop()
        self._serving: asyncio.Future[tuple[Tokenizer, int]] = self._loop.create_future()
        self._renderer = ThreadPoolExecutor(1, thread_name_prefix="prompt")
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._compiling: set[asyncio.Task[None]] = set()
        self._turns = Turns()  # of users whose formats are compiled
        self._held: dict[str, Claim] = {}
        self._preparing: dict[str, bool] = {}  # being tokenised; True: cancel has been asked for meanwhile
        self._accepting = asyncio.Lock()
        self._broker = EngineBroker(url)
        self._ledger = LedgerStore(self._broker, name, status.epoch, keep or LedgerKeep())
        self._outbox: deque[tuple[Sequence[Outgoing], Any]] = deque()
        self._news: deque[Queued] = deque(maxlen=MOST_NEWS)
        self._wake = asyncio.Event()
        self._room = threading.Event()
        self._room.set()
        self._tokens = 0
        self._engines = 1
        self._recheck = self._away = False

    # Called from the step thread

    def start(self) -> None:
        self._thread.start()

    def serve(self, tokenizer: Tokenizer, seats: int) -> None:
        """From now on take requests in."""
        self._loop.call_soon_threadsafe(self._serving.set_result, (tokenizer, seats))

    def publish(self, items: Sequence[Outgoing], record: Any = None) -> None:
        """Hand over a step's events and its ledger record. Waits only where far too many are under way already."""
        self._room.wait()
        self._outbox.append((items, record))
        if len(self._outbox) >= MOST_STEPS_BEHIND:
            self._room.clear()
        self._loop.call_soon_threadsafe(self._wake.set)

    def tell(self, news: Sequence[Queued]) -> None:
        """Hand over news for those who wait. They are lost where the broker is away: newer ones come."""
        self._news.extend(news)
        self._loop.call_soon_threadsafe(self._wake.set)

    def announce(self, status: EngineStatus, expiry: float, timeout: float = 2.0) -> None:
        """Set a status that outlives this process, such as why it could not start."""
        self.status = status
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
                *(self._beat, self._publisher, self._intake, self._control, self._watch_others),
                self._ledger.archive,
            )
        ]
        self._loop.run_forever()
        self._loop.close()

    async def _announce(self, status: EngineStatus, expiry: float) -> None:
        await end_tasks(self._tasks)  # a heartbeat under way could come later and say something else
        await self._broker.beat(self._consumer, status, expiry)

    async def _close(self) -> None:
        await end_tasks([*self._tasks, *self._compiling])
        for threads in (self._renderer, self._compiler):
            threads.shutdown(wait=False, cancel_futures=True)
        while self._outbox:
            await self._publish_some()
        await self._ledger.close()
        for claim in self._held.values():
            await self._broker.release(claim)
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
                self._away = self._recheck = True
                await asyncio.sleep(pause)
                pause = min(pause * 2, most)
            except ResponseError as error:
                log.error("broker_refused: %s, %s", work.__name__.strip("_"), error)
                await asyncio.sleep(most)

    async def _start_anew(self) -> None:
        """There is no consumer group: the broker is new, or it lost its state, and every log with it."""
        async with self._accepting:
            if self._held:
                log.warning("broker_state_lost: %d requests dropped, the web puts them back", len(self._held))
            self._held.clear()
            self._orders.put(DropAll())
            await self._broker.create_group()

    async def _beat(self) -> None:
        await self._broker.beat(self._consumer, self.status)
        await asyncio.sleep(HEARTBEAT)

    async def _watch_others(self) -> None:
        """Count live engines; take the requests of dead ones."""
        await asyncio.shield(self._serving)
        self._engines = sum(status.state == "ready" for status in (await self._broker.statuses()).values())
        if self._has_room():
            with contextlib.suppress(NoGroup):  # the intake sees to that
                await self._accept(await self._broker.take_over(self._consumer, READ_AT_ONCE))
        await asyncio.sleep(HEARTBEAT)

    async def _intake(self) -> None:
        await asyncio.shield(self._serving)
        if not self._has_room():
            await asyncio.sleep(0.02)
            return
        try:
            if self._recheck:  # after a break: an answer with entries for us may have been lost
                self._recheck = False
                await self._accept(await self._broker.read_requests(self._consumer, 10_000, new=False))
            await self._accept(await self._broker.read_requests(self._consumer, READ_AT_ONCE))
        except NoGroup:
            await self._start_anew()

    def _has_room(self) -> bool:
        _, seats = self._serving.result()
        most = QUEUE_ALONE if self._engines <= 1 else 2 * seats
        return len(self._held) < most

    async def _accept(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        async with self._accepting:
            for entry_id, body in entries:
                submission = Submission.decode(body)
                held = self._held.get(submission.request_id)
                if held is not None and await self._broker.holds(held):
                    continue
                self._tokens += 1
                token = f"{self._consumer}#{self._tokens}"
                result = await self._broker.claim(submission.request_id, token, self._consumer)
                if result is None:
                    await self._broker.forget_request(entry_id)
                else:
                    await self._take(submission, result)

    async def _take(self, submission: Submission, result: ClaimResult) -> None:
        claim = result.claim
        self._held[claim.request_id] = claim
        if result.cancelled:
            self._finish(submission, result, "cancelled")
            return
        if result.attempts > MAX_ATTEMPTS:
            message = f"the engine failed {MAX_ATTEMPTS} times while it worked on this request"
            self._finish(submission, result, "error", "engine_unavailable", message)
            return
        self._preparing[claim.request_id] = False
        if not is_slow(self._serving.result()[0], submission):
            await self._prepare(submission, result, self._renderer)
            return
        task = self._loop.create_task(self._prepare_slowly(submission, result))  # the others don't wait for it
        self._compiling.add(task)
        task.add_done_callback(self._compiling.discard)

    async def _prepare_slowly(self, submission: Submission, result: ClaimResult) -> None:
        async with self._turns.turn(submission.user):
            await self._prepare(submission, result, self._compiler)

    async def _prepare(self, submission: Submission, result: ClaimResult, threads: ThreadPoolExecutor) -> None:
        claim, so_far = result.claim, result.log
        tokenizer, _ = self._serving.result()
        try:
            rendered = await self._loop.run_in_executor(threads, render, tokenizer, submission)
            if self._held.get(claim.request_id) is not claim:  # lost, or taken anew
                return
            self._orders.put(
                Add(
                    claim,
                    rendered.prompt_ids,
                    rendered.params,
                    submission.user,
                    so_far.token_ids,
                    so_far.next_seq,
                    submission.submitted_at,
                    rendered.grammar,
                    so_far,
                )
            )
            if self._preparing.get(claim.request_id):
                self._orders.put(Cancel(claim.request_id))
        except RequestRefused as error:
            self._finish(submission, result, "error", error.code, str(error))
        except ParameterError as error:
            self._finish(submission, result, "error", "bad_params", str(error))
        except Exception:
            log.exception("prompt_failed: request %s", claim.request_id)
            self._finish(submission, result, "error", "internal", "the prompt could not be read")
        finally:
            if self._held.get(claim.request_id, claim) is claim:
                self._preparing.pop(claim.request_id, None)

    def _finish(
        self, submission: Submission, result: ClaimResult, reason: str, code: str = "", message: str = ""
    ) -> None:
        """End a request that never reaches this process's engine."""
        now = time.time()
        waited = 1000 * max(0.0, now - (submission.submitted_at or now))
        past = result.log.past(submission.submitted_at, now)
        event = Finish(
            result.claim.request_id,
            result.log.next_seq,
            reason,
            completion_tokens=len(result.log.token_ids),
            error_code=code,
            error_message=message,
            receipt=unrun_receipt(waited, past, engine=self._name, epoch=self.status.epoch),
            finished_at=now,
            engine=self._name,
        )
        self._outbox.append(([Outgoing(result.claim, event)], None))
        self._wake.set()

    async def _control(self) -> None:
        after = await self._broker.control_end()  # before anyone can see that this engine is ready and ask for anything
        await asyncio.shield(self._serving)
        self._cancel(await self._broker.cancelled_among(list(self._held)))  # asked for while nobody listened
        while True:
            after, request_ids, controls = await self._broker.read_control(after)
            self._cancel(request_ids)
            self._order(controls)

    def _cancel(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            if request_id in self._preparing:
                self._preparing[request_id] = True
            elif request_id in self._held:
                self._orders.put(Cancel(request_id))

    def _order(self, controls: Sequence[bytes]) -> None:
        for body in controls:
            try:
                control = Control.decode(body)
            except (ValueError, TypeError, AttributeError):  # no JSON, no object, no engine named
                log.warning("control_refused: it can't be read")
                continue
            if control.engine == self._name:
                self._orders.put(control)

    async def _publisher(self) -> None:
        await self._wake.wait()
        self._wake.clear()
        news = [self._news.popleft() for _ in range(len(self._news))]
        if news:  # before the outbox: who waited then may have a token by now
            await self._broker.tell(news)
        while self._outbox:
            await self._publish_some()

    async def _publish_some(self) -> None:
        """Send whole steps, oldest first, as many as fit one call. They leave the outbox only when they are out."""
        items: list[Outgoing] = []
        steps = 0
        for i in range(len(self._outbox)):  # the step thread may append meanwhile
            step_items = self._outbox[i][0]
            if steps and len(items) + len(step_items) > PUBLISH_AT_ONCE:
                break
            items += step_items
            steps += 1
        try:
            refused = await self._broker.publish(items) if items else set()
            records = [record for _, record in islice(self._outbox, steps) if record is not None]
            lines = [orjson.dumps(record) for record in records]
            if lines:
                await self._broker.append_ledger(self._name, lines)
        except BaseException:
            self._wake.set()  # the same once more, later
            raise
        for _ in range(steps):
            self._outbox.popleft()
        for record, line in zip(records, lines, strict=True):
            self._ledger.add(record, line)
        self._room.set()
        self._settle(items, refused)

    def _settle(self, items: Sequence[Outgoing], refused: set[str]) -> None:
        for token in refused:
            log.warning("claim_lost: %s", token)
            self._orders.put(Drop(token))
        for item in items:
            claim = item.claim
            over = claim.token in refused or isinstance(item.event, Finish)
            if over and self._held.get(claim.request_id) is claim:
                del self._held[claim.request_id]
