"""The step loop of an engine's process: orders become engine calls, step outputs log entries.

Knows: under which claim each request runs, what the heartbeat says. Must not know: Redis commands, how orders come and
outputs go (link.py), how the process starts and ends (worker.py).
"""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, replace
from queue import Empty, SimpleQueue
from typing import Any

from inference.config import ParameterError
from inference.scheduling.receipt import unrun_receipt
from inference.scheduling.request import RequestRefused
from inference.serving.entries import Entries
from inference.serving.link import BrokerLink
from inference.serving.logs import Claim, Event, Outgoing
from inference.serving.lost import EndedRuns
from inference.serving.messages import Control, EngineStatus, Finish
from inference.serving.orders import Add, Cancel, Drain, Drop, DropAll, Order, Refuse, Stop
from inference.serving.queue_news import QueueNews

log = logging.getLogger("batchscope.engine")

WAIT_AT_ONCE = 1.0  # seconds; while a batch fills, the heartbeat goes on telling that all is well


class Worker:
    """The step loop. Owns the engine and knows under which claim each of its requests runs."""

    def __init__(self, engine: Any, link: BrokerLink, orders: SimpleQueue[Order], status: EngineStatus) -> None:
        self._engine, self._link, self._orders = engine, link, orders
        self._entries = Entries(engine.tokenizer, status.name, status.epoch)
        self._claims: dict[str, Claim] = {}
        self._leaving: dict[str, Add | None] = {}  # dropped, not out of the engine yet; what to add once it is
        self._cancelled: set[str] = set()  # the engine has not told of their ends yet
        self._ended = EndedRuns()
        self._stopping = False
        self._made: list[tuple[list[Outgoing], Any]] = []  # outputs of steps, not handed over yet
        engine.before_forward = self._hand_over
        self._n = 0
        self._news = QueueNews()
        self._status = replace(
            status,
            state="ready",
            detail="",
            model=engine.model_name,
            settings={
                **status.settings,
                **engine.controls.settings,
                "max_model_len": engine.max_model_len,  # the model's own, where no other was set
                "most": engine.controls.most.to_mapping(),
            },
            progress_at=time.time(),
        )

    def run(self) -> None:
        self._report(None)
        self._link.serve(self._engine.tokenizer, self._engine.config.max_num_seqs)
        while True:
            is_news = self._obey()
            if self._stopping or (self._status.draining and self._engine.controls.paused):  # nothing would end
                self._hand_over()
                return
            if self._engine.has_work and (is_news or self._engine.seconds_to_next_step() <= 0):
                self._step()

    def _obey(self) -> bool:
        """Carry out all orders that are there; with nothing to run, wait for one. Whether there were any."""
        orders = self._orders
        if not self._engine.has_work:
            self._hand_over()
            self._report(None)
            self._carry_out(orders.get())
        elif (seconds := self._engine.seconds_to_next_step()) <= 0:
            if orders.empty():
                return False
        else:
            self._hand_over()
            self._report(None)
            try:
                self._carry_out(orders.get(timeout=min(seconds, WAIT_AT_ONCE)))
            except Empty:
                return False
        while not orders.empty():
            self._carry_out(orders.get())
        return True

    def _carry_out(self, order: Order) -> None:
        match order:
            case Add():
                self._add(order)
            case Cancel(request_id):
                self._cancel(request_id)
            case Control():
                self._control(order)
            case Drain(seconds):
                self._status = self._link.status = replace(self._status, draining=True)
                self._link.drain(seconds)
            case Drop(token):
                for request_id in [r for r, claim in self._claims.items() if claim.token == token]:
                    self._drop(request_id)
                for request_id, add in self._leaving.items():
                    if add is not None and add.claim.token == token:
                        self._leaving[request_id] = None
            case DropAll():
                for request_id in list(self._claims):
                    self._drop(request_id)
                self._leaving = dict.fromkeys(self._leaving)
            case Refuse(action, text):
                self._refuse(action, text)
            case Stop():
                self._stopping = True

    def _control(self, control: Control) -> None:
        """What staff asks. What can't be done changes nothing and stops nothing, and the status says why."""
        try:
            self._engine.controls.carry_out(control.action, control.values)
        except ParameterError as error:
            self._refuse(control.action, str(error))
        else:
            self._answer(None)
            log.info("control: %s %s, asked by %s", control.action, control.values, control.by or "nobody")

    def _refuse(self, action: Any, text: str) -> None:
        log.warning("control_refused: %s", text)
        named = action[:40] if isinstance(action, str) else ""  # it may be anything
        self._answer({"text": text, "at": time.time(), "action": named})

    def _answer(self, refused: dict[str, Any] | None) -> None:
        """To a control; whoever asked reads it in the heartbeat."""
        self._status = replace(self._status, answered=self._status.answered + 1, refused=refused)

    def _cancel(self, request_id: str) -> None:
        if request_id in self._claims:
            if self._engine.cancel(request_id):
                self._cancelled.add(request_id)
        elif add := self._leaving.get(request_id):
            self._leaving[request_id] = None
            self._end_unrun(add, "cancelled")

    def _drop(self, request_id: str) -> None:
        """Stop running it; what it still puts out is nobody's."""
        del self._claims[request_id]
        if self._engine.cancel(request_id) or request_id in self._cancelled:
            self._leaving[request_id] = None

    def _add(self, add: Add) -> None:
        request_id = add.claim.request_id
        if add.lost is not None:
            add = replace(add, lost=self._ended.known(request_id, add.lost))
        if request_id in self._claims:
            self._drop(request_id)
        if request_id in self._leaving:
            self._leaving[request_id] = add
            return
        try:
            self._engine.add_request(
                add.prompt_ids,
                add.params,
                request_id=request_id,
                user=add.user,
                output_ids=add.output_ids,
                grammar=add.grammar,
                age=add.age,
                past=add.past,
            )
        except RequestRefused as error:
            self._end_unrun(add, "error", error.code, str(error))
        except ParameterError as error:
            self._end_unrun(add, "error", "bad_params", str(error))
        except Exception:
            log.exception("admission_failed: request %s", request_id)
            self._end_unrun(add, "error", "internal", "this request failed in the engine; the others go on")
        else:
            self._claims[request_id] = add.claim

    def _end_unrun(self, add: Add, reason: str, code: str = "", message: str = "") -> None:
        """End a request that the engine does not have."""
        finish = Finish(
            add.claim.request_id,
            add.next_seq,
            reason,
            prompt_tokens=len(add.prompt_ids),
            completion_tokens=len(add.output_ids),
            error_code=code,
            error_message=message,
            receipt=self._entries.receipt(unrun_receipt(1000 * add.age, add.past)),
            finished_at=time.time(),
            engine=self._status.name,
        )
        self._link.publish([Outgoing(add.claim, finish)])

    def _step(self) -> None:
        if not self._status.busy:  # from here on no progress means trouble
            self._status = self._link.status = replace(self._status, busy=True, progress_at=time.time())
        output = self._engine.step()
        now = time.time()
        record = output.record
        if record is not None:
            self._n = record.n
        events: list[Event] = [self._entries.delta(delta, self._n, now) for delta in output.deltas]
        events += [self._entries.finish(finish, self._n) for finish in output.finishes]
        items = [Outgoing(self._claims[e.request_id], e) for e in events if e.request_id in self._claims]
        if items or record is not None:
            self._made.append((items, record))
        for finish in output.finishes:
            self._claims.pop(finish.request_id, None)
            self._cancelled.discard(finish.request_id)
            self._ended.keep(finish)
            if add := self._leaving.pop(finish.request_id, None):
                self._add(add)
        self._report(record)

    def _hand_over(self) -> None:
        """Give what steps have put out to the broker thread. Best as the next forward pass begins: before that the two
        threads would contend for the interpreter, and the step waited while the other one writes JSON."""
        made, self._made = self._made, []
        for items, record in made:
            self._link.publish(items, record)

    def _report(self, record: Any) -> None:
        """Bring the heartbeat's status up to date: after a step, while none is to be made (a batch fills, the engine is
        paused or slow), and on going idle; then the pool checks its books."""
        settings, controls = self._status.settings, self._engine.controls
        if not (in_force := controls.settings).items() <= settings.items():
            settings = {**settings, **in_force}
        numbers: dict[str, Any] = {}
        if record is not None:
            numbers = {
                "running": len(record.rows or self._engine.scheduler.running),  # a paused engine computes no rows
                "waiting": record.waiting_total,
                "kv": asdict(record.kv),
                "busy": True,
            }
        else:
            pool = self._engine.pool
            kv = {"free": pool.free_count, "cached": pool.cached_count, "used": pool.held_count}
            numbers = {"kv": {**kv, "total": pool.num_blocks}}
            if not self._engine.has_work:
                pool.check()
                numbers |= {"running": 0, "waiting": 0, "busy": False}
        numbers |= {"paused": controls.paused, "slow_ms": controls.slow_ms}
        numbers["costs"] = self._engine.scheduler.pace.costs.summary()
        self._status = replace(self._status, progress_at=time.time(), settings=settings, **numbers)
        self._link.status = self._status
        if self._status.waiting and (news := self._news.of(self._engine.line, time.monotonic())):
            self._link.tell([one for one in news if one.request_id in self._claims])
