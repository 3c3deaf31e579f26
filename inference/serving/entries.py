"""From what a step puts out to entries of the requests' logs.

Knows: the engine's outputs and the broker's messages. Must not know: claims, threads, Redis commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inference.serving.messages import Delta, Finish

LEAST_LOGPROB = -9999.0  # in place of minus infinity, which JSON has no word for; as OpenAI's API


class Entries:
    """engine, epoch: under which this process and its iterations are known.  tokenizer: for the text of single ids."""

    def __init__(self, tokenizer: Any, engine: str, epoch: int = 0) -> None:
        self._tokenizer, self._engine, self._epoch = tokenizer, engine, epoch

    def delta(self, delta: Any, iteration: int, now: float) -> Delta:
        return Delta(
            delta.request_id,
            delta.seq,
            delta.text,
            list(delta.token_ids),
            iteration,
            now,
            self._logprobs(delta.logprobs),
            delta.started_at,
        )

    def finish(self, finish: Any, iteration: int) -> Finish:
        return Finish(
            request_id=finish.request_id,
            seq=finish.seq,
            finish_reason=str(finish.finish_reason),
            token_ids=list(finish.token_ids),
            prompt_tokens=finish.prompt_tokens,
            completion_tokens=finish.completion_tokens,
            cached_tokens=finish.cached_tokens,
            error_code=finish.error_code,
            error_message=finish.error_message,
            receipt=self.receipt(finish.receipt),
            iteration=iteration,
            started_at=finish.started_at,
            first_token_at=finish.first_token_at,
            finished_at=finish.finished_at,
            engine=self._engine,
            logprobs=self._logprobs(finish.logprobs),
        )

    def receipt(self, receipt: dict[str, Any]) -> dict[str, Any]:
        """The engine's, with the name of its iterations."""
        return {**receipt, "details": {**receipt["details"], "engine": self._engine, "epoch": self._epoch}}

    def _logprobs(self, tokens: Sequence[Any] | None) -> list[dict[str, Any]] | None:
        if tokens is None:
            return None
        return [
            {**self._one(token.token_id, token.logprob), "top": [self._one(*pair) for pair in token.top]}
            for token in tokens
        ]

    def _one(self, token_id: int, logprob: float) -> dict[str, Any]:
        piece = self._tokenizer.pieces[token_id]
        text = piece.decode(errors="replace") if isinstance(piece, bytes) else piece
        return {"token_id": token_id, "token": text, "logprob": max(logprob, LEAST_LOGPROB)}
