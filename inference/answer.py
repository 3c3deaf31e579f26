"""One answer while it is made: ids in, text out, and when it ends.

Knows: the detokeniser, the grammar, the end conditions, the numbering of deltas. Must not know: torch, the scheduler.
Text, seq and end are a pure function of the ids, so an answer that is taken up elsewhere replays its ids and goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from typing import Any, Protocol

from inference.config import SamplingParams
from inference.scheduling.outputs import TokenDelta
from inference.scheduling.request import FinishReason, RequestRefused
from inference.scheduling.token_logprobs import TokenLogprobs
from inference.text.detokenizer import IncrementalDetokenizer
from inference.text.grammar import GrammarError


class AnswerTokenizer(Protocol):
    """What an answer needs of a tokenizer."""

    pieces: Any


class AnswerGrammar(Protocol):
    """What holds an answer to a format: `text.grammar.GrammarState`. ended: only the end can follow."""

    @property
    def ended(self) -> bool: ...

    def advance(self, token_id: int) -> None: ...

    def mask(self) -> Any: ...


class Answer:
    """ids: all tokens so far.  text: what was shown.  end_ids: each of them ends it.  reason: set once it has ended.
    logprobs: of the tokens that were drawn here, where they are asked for.

    A stop string ends an answer even before `min_tokens`, which bars only EOS and stop ids: it must never be shown.
    An answer whose format is complete ends, whatever `min_tokens` and `ignore_eos` say: nothing can follow.
    """

    def __init__(
        self,
        request_id: str,
        tokenizer: AnswerTokenizer,
        params: SamplingParams,
        eos_token_ids: Collection[int],
        grammar: AnswerGrammar | None = None,
    ) -> None:
        self.request_id = request_id
        self.ids: list[int] = []
        self.end_ids = frozenset(params.stop_token_ids).union(() if params.ignore_eos else eos_token_ids)
        self.reason: FinishReason | None = None
        self.seq = 0
        self.grammar = grammar
        self._max_tokens = params.max_tokens
        self._detokenizer = IncrementalDetokenizer(tokenizer, params.stop)
        # Of ids that are not told yet, where text can end it and was made at once.
        self._early: deque[str] | None = deque() if params.stop else None
        self._shown: list[str] = []
        self._told = 0  # ids whose text was looked at
        self._sent = 0  # ids that went out with a delta
        self.logprobs: list[TokenLogprobs] | None = None if params.logprobs is None else []
        self._sent_logprobs = 0

    @property
    def text(self) -> str:
        return "".join(self._shown)

    @property
    def unsent_ids(self) -> list[int]:
        """Told, and not part of a delta."""
        return self.ids[self._sent : self._told]

    @property
    def unsent_logprobs(self) -> list[TokenLogprobs] | None:
        """One for each of `unsent_ids` that was drawn here; None where they were not asked for."""
        return None if self.logprobs is None else self.logprobs[self._sent_logprobs : self._told_logprobs]

    @property
    def _told_logprobs(self) -> int:
        return len(self.logprobs or ()) - (len(self.ids) - self._told)  # what is not told yet was drawn here

    def replay(self, ids: Iterable[int]) -> None:
        """Take in tokens that went out before. Raises RequestRefused where they pass an end or break the format."""
        for token_id in ids:
            if self.reason is not None:
                raise RequestRefused("bad_params", f"the answer so far goes on after its end at token {len(self.ids)}")
            try:
                self.push(token_id)
            except GrammarError as error:
                raise RequestRefused("bad_params", f"the answer so far, at token {len(self.ids)}: {error}") from None

    def push(self, token_id: int, logprobs: TokenLogprobs | None = None) -> TokenDelta | None:
        """Take the next token. The delta it brings, if it brings text; `reason` tells whether it was the last."""
        self.take(token_id, logprobs)
        return self.tell()

    def take(self, token_id: int, logprobs: TokenLogprobs | None = None) -> None:
        """The half of `push` that decides what comes next, and `reason`. Text is made only where it can be the end."""
        self.ids.append(token_id)
        if self.logprobs is not None and logprobs is not None:
            self.logprobs.append(logprobs)
        if self.grammar is not None and token_id not in self.end_ids:
            self.grammar.advance(token_id)
        if self._early is not None:
            self._early.append(self._detokenizer.push(token_id))
        self.reason = self._ends(token_id)

    def tell(self) -> TokenDelta | None:
        """The other half, once for each token taken: the delta it brings."""
        token_id = self.ids[self._told]
        self._told += 1
        text = self._detokenizer.push(token_id) if self._early is None else self._early.popleft()
        is_last = self.reason is not None and self._told == len(self.ids)
        return self._delta(text + self._detokenizer.finish() if is_last else text)

    def cut(self, reason: FinishReason) -> TokenDelta | None:
        """End it from outside, once all is told that can be. The delta of what was held back, if there was any."""
        self._told = len(self.ids)
        self.reason = reason
        return self._delta(self._detokenizer.finish())

    def _ends(self, token_id: int) -> FinishReason | None:
        if self._detokenizer.stopped or token_id in self.end_ids or (self.grammar is not None and self.grammar.ended):
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.ids) >= self._max_tokens else None

    def _delta(self, text: str) -> TokenDelta | None:
        if not text:
            return None
        self.seq += 1
        self._shown.append(text)
        delta = TokenDelta(self.request_id, self.seq, text, self.unsent_ids, self.unsent_logprobs)
        self._sent, self._sent_logprobs = self._told, self._told_logprobs
        return delta
