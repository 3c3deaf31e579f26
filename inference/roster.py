"""The requests that an engine has, by id, and how they leave it.

Knows: what goes out of a request, and in which order. Must not know: the model, how a token is drawn, when.
"""

from __future__ import annotations

from inference.flight import Flight, Word, last_word
from inference.live import LiveRequest
from inference.scheduling.accounts import Accounts
from inference.scheduling.ledger import Finished
from inference.scheduling.line import Line
from inference.scheduling.request import FinishReason
from inference.scheduling.scheduler import Scheduler
from inference.step import Outcome, now_ms


class Roster:
    """live: those whose end was not told.  accounts: where their time goes.  line: where who waits stands.
    landed: the newest iteration whose tokens are known; of it something may still be to be told."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.live: dict[str, LiveRequest] = {}
        self.landed: Flight | None = None
        self.accounts = Accounts(scheduler.pace.costs, scheduler.queue.shares)
        self.line = Line(scheduler)
        self._scheduler = scheduler
        self._left: dict[str, Word] = {}  # of those who have left already, by id

    def clear(self) -> None:
        """All are gone, and nothing is said of it."""
        for live in self.live.values():
            self._scheduler.remove(live.request)
        self.live.clear()
        self._left.clear()
        self.accounts.clear()
        self.landed = None

    def tell(self, flight: Flight) -> None:
        """Text and ends of an iteration, as far as they are not told yet. Ends nobody else: the next one may be planned
        already; see `end_failed`."""
        while flight.untold:
            word = flight.untold.popleft()
            live, outcome = word.live, flight.outcome
            if any(live is one for one in flight.failed):
                continue
            delta, is_text = live.tell()
            if not is_text:
                flight.failed.append(live)
                continue
            if delta is not None:
                outcome.deltas.append(delta)
            if word.is_last:
                self._close(word, outcome)

    def end_failed(self, flight: Flight) -> None:
        """End those whose text could not be made. Not while an iteration is planned."""
        for live in flight.failed:
            self.cut(live, FinishReason.ERROR, flight.outcome, "internal")
        flight.failed.clear()

    def cut(self, live: LiveRequest, reason: FinishReason, outcome: Outcome, code: str = "", message: str = "") -> None:
        """End a request from outside, after what it has come to so far."""
        if self.landed is not None:
            self.tell(self.landed)
        if self.live.get(live.request.request_id) is not live:
            return
        if (delta := live.cut(reason)) is not None:
            outcome.deltas.append(delta)
        self.end(live, outcome, code, message)

    def end(self, live: LiveRequest, outcome: Outcome, code: str = "", message: str = "") -> None:
        """It has come to its end, and all of its text was told."""
        self._close(self.leave(live), outcome, code, message)

    def leave(self, live: LiveRequest) -> Word:
        """It gives back its blocks and its seat, if it had one. Word of its end, which is still to be told; the same
        for one that has left already, and whose last text could not be made."""
        request = live.request
        request.finish_reason = live.answer.reason
        if (left := self._left.get(request.request_id)) is not None:
            return left
        seat = request.seat if request.seat >= 0 else None
        self._scheduler.remove(request)
        self.accounts.end(live.account, now_ms())
        if request.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            self.line.ended(request)
        word = self._left[request.request_id] = last_word(live, seat)
        return word

    def _close(self, word: Word, outcome: Outcome, code: str = "", message: str = "") -> None:
        finish = word.live.finish(code, message, word.ended_at)
        del self.live[finish.request_id], self._left[finish.request_id]
        outcome.finished.append(Finished(finish.request_id, str(finish.finish_reason), word.seat))
        outcome.finishes.append(finish)
