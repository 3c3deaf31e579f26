"""A request that waits or runs, whole: the scheduler's part, the text's part, its times.

Knows: how the parts make what the sampler gets and what goes out at the end. Must not know: the scheduler, the clock.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from inference.answer import Answer
from inference.execution.sampler import SampleRow
from inference.scheduling.outputs import RequestFinish, TokenDelta
from inference.scheduling.receipt import RequestTimes
from inference.scheduling.request import FinishReason, Request

log = logging.getLogger("batchscope.engine")

_MESSAGES = {
    "numerical_error": "the model computed something that is not a number for this request",
    "internal": "this request failed in the engine; the others go on",
}


@dataclass(slots=True)
class LiveRequest:
    """request.output_ids and answer.ids are one list; the answer alone appends to it."""

    request: Request
    answer: Answer
    times: RequestTimes

    def sample_row(self) -> SampleRow:
        request = self.request
        return SampleRow(request.params, request.seed, len(request.output_ids), self.answer.end_ids)

    def push(self, token_id: int) -> tuple[TokenDelta | None, bool]:
        """Take the next token: the delta it brings, and whether its text could be made at all."""
        try:
            return self.answer.push(token_id), True
        except Exception:
            log.exception("detokenising_failed: one request fails")
            return None, False

    def cut(self, reason: FinishReason) -> TokenDelta | None:
        """End it from outside. The delta of what was held back, which is lost where even that fails."""
        try:
            return self.answer.cut(reason)
        except Exception:
            log.exception("detokenising_failed: the last text of one request is lost")
            return None

    def finish(self, code: str, now_ms: float, now_at: float) -> RequestFinish:
        """The end, once `answer.reason` is set. `code`: of an error, else ""."""
        answer, times = self.answer, self.times
        return RequestFinish(
            request_id=self.request.request_id,
            seq=answer.seq + 1,
            finish_reason=answer.reason or FinishReason.ERROR,
            token_ids=answer.unsent_ids,
            prompt_tokens=len(self.request.prompt_ids),
            completion_tokens=len(answer.ids),
            error_code=code,
            error_message=_MESSAGES.get(code, ""),
            receipt=times.receipt(now_ms),
            started_at=times.started_at,
            first_token_at=times.first_token_at,
            finished_at=now_at,
        )
