"""Requests on their way from the broker to the step thread: read, claimed, made into tokens, handed over as orders.

Knows: claims, whose turn it is to have a grammar compiled, how a request ends that never reaches the engine. Must not
know: torch, what the engine does with a request, how outputs go out. All of it runs in the broker thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue

from inference.config import ParameterError
from inference.scheduling.receipt import unrun_receipt
from inference.scheduling.request import RequestRefused
from inference.serving.broker import end_tasks
from inference.serving.broker_engine import EngineBroker, NoGroup
from inference.serving.logs import Claim, ClaimResult, Outgoing
from inference.serving.lost import Lost
from inference.serving.messages import Finish, Submission
from inference.serving.orders import Add, Cancel, Drop, DropAll, Order
from inference.serving.prompts import Tokenizer, is_slow, render
from inference.serving.totals import EngineTotals
from inference.serving.turns import Turns

log = logging.getLogger("batchscope.engine")

MAX_ATTEMPTS = 3
READ_AT_ONCE = 64
QUEUE_ALONE = 4096  # requests held here while this is the only engine; with others, one batch's worth is left waiting
WATCH_EVERY = 0.5  # seconds: as often as an engine's heart beats


@dataclass(frozen=True, slots=True)
class Identity:
    """Under which names an engine's process is known. epoch: see EngineStatus; 0 as long as it is not known."""

    engine: str
    consumer: str
    epoch: Callable[[], int]


class Intake:
    """Let `read` and `watch_others` run again and again; `take_no_more` while it drains; `stop`, then `give_back`, at
    the end.

    serving: the tokenizer and the seats, once there is an engine.  put: takes ends of requests that it never had.
    totals: told of who comes.
    held: claims of requests that are not over, by request.
    """

    def __init__(
        self,
        broker: EngineBroker,
        identity: Identity,
        orders: SimpleQueue[Order],
        serving: asyncio.Future[tuple[Tokenizer, int]],
        put: Callable[[Outgoing], None],
        totals: EngineTotals,
    ) -> None:
        self._broker, self._identity, self._orders, self._serving, self._put = broker, identity, orders, serving, put
        self._totals = totals
        self.held: dict[str, Claim] = {}
        self._preparing: dict[str, bool] = {}  # being tokenised; True: cancel has been asked for meanwhile
        self._accepting = asyncio.Lock()
        self._renderer = ThreadPoolExecutor(1, thread_name_prefix="prompt")
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._compiling: set[asyncio.Task[None]] = set()
        self._turns = Turns()  # of users whose formats are compiled
        self._tokens = 0
        self._engines = 1
        self._recheck = False
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is here, or on its way in from the broker."""
        return not self.held and not self._accepting.locked()

    async def read(self) -> None:
        """Take what comes for this engine, if there is room."""
        await asyncio.shield(self._serving)
        if not self._has_room():
            await asyncio.sleep(0.02)
            return
        try:
            if self._recheck:
                self._recheck = False
                await self._accept(await self._broker.read_requests(self._identity.consumer, 10_000, new=False))
            await self._accept(await self._broker.read_requests(self._identity.consumer, READ_AT_ONCE))
        except NoGroup:
            await self._start_anew()

    async def watch_others(self) -> None:
        """Count live engines; take the requests of dead ones."""
        await asyncio.shield(self._serving)
        statuses = (await self._broker.statuses()).values()
        self._engines = sum(status.state == "ready" and not status.draining for status in statuses)
        if self._has_room():
            with contextlib.suppress(NoGroup):  # `read` sees to that
                await self._accept(await self._broker.take_over(self._identity.consumer, READ_AT_ONCE))
        await asyncio.sleep(WATCH_EVERY)

    def broker_was_away(self) -> None:
        """An answer with entries for us may have been lost."""
        self._recheck = True

    def cancel(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            if request_id in self._preparing:
                self._preparing[request_id] = True
            elif request_id in self.held:
                self._orders.put(Cancel(request_id))

    def settle(self, items: Sequence[Outgoing], refused: set[str]) -> None:
        """These are out; whose claim holds no more, by token, was refused."""
        for token in refused:
            log.warning("claim_lost: %s", token)
            self._orders.put(Drop(token))
        for item in items:
            claim = item.claim
            over = claim.token in refused or isinstance(item.event, Finish)
            if over and self.held.get(claim.request_id) is claim:
                del self.held[claim.request_id]

    def take_no_more(self) -> None:
        """Whatever the broker is just being asked for still comes in: it would wait for us there."""
        self._is_closed = True

    async def stop(self) -> None:
        await end_tasks(self._compiling)
        for threads in (self._renderer, self._compiler):
            threads.shutdown(wait=False, cancel_futures=True)

    async def give_back(self) -> None:
        """Let others go on with what is not over."""
        for claim in self.held.values():
            await self._broker.release(claim)

    async def _start_anew(self) -> None:
        """There is no consumer group: the broker is new, or it lost its state, and every log with it."""
        async with self._accepting:
            if self.held:
                log.warning("broker_state_lost: %d requests dropped, the web puts them back", len(self.held))
            self.held.clear()
            self._totals.forget()
            self._orders.put(DropAll())
            if epoch := self._identity.epoch():
                await self._broker.keep_epoch(self._identity.engine, epoch)
            await self._broker.create_group()

    def _has_room(self) -> bool:
        _, seats = self._serving.result()
        most = QUEUE_ALONE if self._engines <= 1 else 2 * seats
        return not self._is_closed and len(self.held) < most

    async def _accept(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        async with self._accepting:
            for entry_id, body in entries:
                submission = Submission.decode(body)
                held = self.held.get(submission.request_id)
                if held is not None and await self._broker.holds(held):
                    continue
                self._tokens += 1
                token = f"{self._identity.consumer}#{self._tokens}"
                result = await self._broker.claim(submission.request_id, token, self._identity.consumer)
                if result is None:
                    await self._broker.forget_request(entry_id)
                else:
                    await self._take(submission, result)

    async def _take(self, submission: Submission, result: ClaimResult) -> None:
        claim = result.claim
        self.held[claim.request_id] = claim
        log.debug("claimed", extra={"request_id": claim.request_id, "attempt": result.attempts})
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
        task = asyncio.create_task(self._prepare_slowly(submission, result))  # the others don't wait for it
        self._compiling.add(task)
        task.add_done_callback(self._compiling.discard)

    async def _prepare_slowly(self, submission: Submission, result: ClaimResult) -> None:
        async with self._turns.turn(submission.user):
            await self._prepare(submission, result, self._compiler)

    async def _prepare(self, submission: Submission, result: ClaimResult, threads: ThreadPoolExecutor) -> None:
        claim, so_far = result.claim, result.log
        tokenizer, _ = self._serving.result()
        try:
            rendered = await asyncio.get_running_loop().run_in_executor(threads, render, tokenizer, submission)
            if self.held.get(claim.request_id) is not claim:  # lost, or taken anew
                return
            prompt_tokens, deltas = len(rendered.prompt_ids), len(so_far.deltas)
            self._totals.taken(claim.request_id, prompt_tokens, submission.submitted_at, deltas)
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
                    _lost(submission),
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
            if self.held.get(claim.request_id, claim) is claim:
                self._preparing.pop(claim.request_id, None)

    def _finish(
        self, submission: Submission, result: ClaimResult, reason: str, code: str = "", message: str = ""
    ) -> None:
        """End a request that never reaches this process's engine."""
        now = time.time()
        waited = 1000 * max(0.0, now - (submission.submitted_at or now))
        past = result.log.past(submission.submitted_at, now, _lost(submission))
        where = {"engine": self._identity.engine, "epoch": self._identity.epoch()}
        event = Finish(
            result.claim.request_id,
            result.log.next_seq,
            reason,
            completion_tokens=len(result.log.token_ids),
            error_code=code,
            error_message=message,
            receipt=unrun_receipt(waited, past, **where),
            finished_at=now,
            engine=self._identity.engine,
        )
        self._put(Outgoing(result.claim, event))


def _lost(submission: Submission) -> Lost | None:
    if not submission.put_back_at:
        return None
    return Lost(submission.put_back_at, submission.started_at, submission.first_token_at)
