"""A request that waits or runs, whole: the scheduler's part, the text's part, its times.

Knows: how the parts make what the sampler gets and what goes out at the end. Must not know: the scheduler, the clock.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from inference.answer import Answer
from inference.execution.sampler import Sampled, SampleRow
from inference.scheduling.account import Account
from inference.scheduling.outputs import Output, RequestFinish, TokenDelta
from inference.scheduling.receipt import RequestTimes
from inference.scheduling.request import FinishReason, Request
from inference.scheduling.token_counts import TokenCounts
from inference.text.grammar import GrammarLimit

log = logging.getLogger("batchscope.engine")

_MESSAGES = {
    "numerical_error": "the model computed something that is not a number for this request",
    "bad_params": "the parameters of this request allow no token here",
    "internal": "this request failed in the engine; the others go on",
}


@dataclass(slots=True)
class LiveRequest:
    """request.output_ids and answer.ids are one list; the answer alone appends to it.

    counts: of the tokens of prompt and answer, where penalties need them.
    too_complex: where its format can't be followed any further, a sentence for whoever chose it.
    """

    request: Request
    answer: Answer
    times: RequestTimes
    account: Account
    counts: TokenCounts | None = None
    too_complex: str = ""

    @classmethod
    def of(cls, request: Request, answer: Answer, account: Account) -> LiveRequest:
        """Of a request with the answer that it has so far."""
        return cls(
            request, answer, RequestTimes(), account, TokenCounts.of(request.params, request.prompt_ids, answer.ids)
        )

    def sample_row(self) -> SampleRow | None:
        """What the sampler is asked; None where that could not be made."""
        request, grammar = self.request, self.answer.grammar
        try:
            allowed = None if grammar is None else grammar.mask()
        except GrammarLimit as error:
            self.too_complex = str(error)
            return None
        except Exception:
            log.exception("grammar_failed: one request fails")
            return None
        return SampleRow(
            request.params, request.seed, len(request.output_ids), self.answer.end_ids, self.counts, allowed
        )

    def take(self, token: Sampled) -> bool:
        """Take the next token. Whether that could be done at all."""
        try:
            if self.counts is not None:
                self.counts.push(token.token_id)
            self.answer.take(token.token_id, token.logprobs)
        except GrammarLimit as error:
            self.too_complex = str(error)
            return False
        except Exception:
            log.exception("answer_failed: one request fails")
            return False
        return True

    def tell(self) -> tuple[TokenDelta | None, bool]:
        """The delta that a token brings, in their order, and whether its text could be made at all."""
        try:
            delta = self.answer.tell()
            if delta is not None and delta.seq == 1:
                delta = replace(delta, started_at=self.times.started_at)
            return delta, True
        except Exception:
            log.exception("answer_failed: one request fails")
            return None, False

    def cut(self, reason: FinishReason) -> TokenDelta | None:
        """End it from outside. The delta of what was held back, which is lost where even that fails."""
        try:
            return self.answer.cut(reason)
        except Exception:
            log.exception("detokenising_failed: the last text of one request is lost")
            return None

    def finish(self, code: str, message: str, ended_at: float) -> RequestFinish:
        """The end, once `answer.reason` is set. `code`: of an error, else "".  message: "" for the code's own."""
        answer, times = self.answer, self.times
        return RequestFinish(
            request_id=self.request.request_id,
            seq=answer.seq + 1,
            finish_reason=answer.reason or FinishReason.ERROR,
            token_ids=answer.unsent_ids,
            prompt_tokens=len(self.request.prompt_ids),
            completion_tokens=len(answer.ids),
            cached_tokens=self.request.num_cached_tokens,
            error_code=code,
            error_message=message or _MESSAGES.get(code, ""),
            receipt=self.account.receipt(),
            started_at=times.started_at,
            first_token_at=times.first_token_at,
            finished_at=ended_at,
            logprobs=answer.unsent_logprobs,
        )

    def output(self, finish: RequestFinish) -> Output:
        """The whole answer, once it has ended."""
        return Output(
            request_id=finish.request_id,
            token_ids=self.answer.ids,
            text=self.answer.text,
            finish_reason=finish.finish_reason,
            prompt_tokens=finish.prompt_tokens,
            cached_tokens=finish.cached_tokens,
            error_code=finish.error_code,
            error_message=finish.error_message,
            receipt=finish.receipt,
            logprobs=self.answer.logprobs,
        )
