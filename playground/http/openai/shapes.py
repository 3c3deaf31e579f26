"""The two shapes of answers, whole and in chunks: of chat completions and of completions.

Knows: OpenAI's objects. Must not know: HTTP, requests, where text and tokens come from.
A token, here, is {"token_id", "token", "logprob", "top": [the same three]}, as deltas have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Token = dict[str, Any]
LEAST = -9999.0  # for a logprob that JSON has no number for, as clients know it


class ChatShape:
    prefix = "chatcmpl-"
    whole = "chat.completion"
    chunk = "chat.completion.chunk"

    def choice(self, index: int, text: str, tokens: Sequence[Token] | None, finish_reason: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {
            "index": index,
            "message": message,
            "logprobs": _of_chat(tokens),
            "finish_reason": finish_reason,
        }

    def opening(self, index: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def piece(self, index: int, text: str, tokens: Sequence[Token] | None, start: int) -> dict[str, Any]:
        return {"index": index, "delta": {"content": text}, "logprobs": _of_chat(tokens), "finish_reason": None}

    def closing(self, index: int, finish_reason: str) -> dict[str, Any]:
        return {"index": index, "delta": {}, "logprobs": None, "finish_reason": finish_reason}


class CompletionShape:
    prefix = "cmpl-"
    whole = chunk = "text_completion"

    def choice(self, index: int, text: str, tokens: Sequence[Token] | None, finish_reason: str) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": _of_text(tokens, 0), "finish_reason": finish_reason}

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    def piece(self, index: int, text: str, tokens: Sequence[Token] | None, start: int) -> dict[str, Any]:
        """start: characters of the answer before this piece."""
        return {"index": index, "text": text, "logprobs": _of_text(tokens, start), "finish_reason": None}

    def closing(self, index: int, finish_reason: str) -> dict[str, Any]:
        return {"index": index, "text": "", "logprobs": None, "finish_reason": finish_reason}


Shape = ChatShape | CompletionShape


def _of_chat(tokens: Sequence[Token] | None) -> dict[str, Any] | None:
    if tokens is None:
        return None
    content = [{**_one(token), "top_logprobs": [_one(likely) for likely in token["top"]]} for token in tokens]
    return {"content": content, "refusal": None}


def _one(token: Token) -> dict[str, Any]:
    text = token["token"]
    # A token that is part of a character has U+FFFD for it: its bytes are not known here.
    known = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": _finite(token["logprob"]), "bytes": known}


def _of_text(tokens: Sequence[Token] | None, start: int) -> dict[str, Any] | None:
    if tokens is None:
        return None
    offsets = []
    for token in tokens:
        offsets.append(start)
        start += len(token["token"])
    return {
        "tokens": [token["token"] for token in tokens],
        "token_logprobs": [_finite(token["logprob"]) for token in tokens],
        "top_logprobs": [{one["token"]: _finite(one["logprob"]) for one in token["top"]} for token in tokens],
        "text_offset": offsets,
    }


def _finite(logprob: float | None) -> float:
    return LEAST if logprob is None else max(logprob, LEAST)
