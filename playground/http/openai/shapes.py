"""The two shapes of answers, whole and in chunks: of chat completions and of completions.

Knows: OpenAI's objects. Must not know: HTTP, requests, where text and tokens come from.
A token, here, is {"token_id", "token", "logprob", "top": [the same three]}, as deltas have them, and "at": how many
characters of the answer come before it (`placed`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Token = dict[str, Any]
PART = "\ufffd"  # stands for what is not whole characters in a token's text
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

    def piece(self, index: int, text: str, tokens: Sequence[Token] | None) -> dict[str, Any]:
        return {"index": index, "delta": {"content": text}, "logprobs": _of_chat(tokens), "finish_reason": None}

    def closing(self, index: int, finish_reason: str) -> dict[str, Any]:
        return {"index": index, "delta": {}, "logprobs": None, "finish_reason": finish_reason}


class CompletionShape:
    prefix = "cmpl-"
    whole = chunk = "text_completion"

    def choice(self, index: int, text: str, tokens: Sequence[Token] | None, finish_reason: str) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": _of_text(tokens), "finish_reason": finish_reason}

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    def piece(self, index: int, text: str, tokens: Sequence[Token] | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": _of_text(tokens), "finish_reason": None}

    def closing(self, index: int, finish_reason: str) -> dict[str, Any]:
        return {"index": index, "text": "", "logprobs": None, "finish_reason": finish_reason}


Shape = ChatShape | CompletionShape


def placed(tokens: Sequence[Token] | None, text: str, start: int) -> list[Token] | None:
    """The tokens of a piece, with their places. start: characters of the answer before it. Tokens that are parts of one
    character all begin where it does."""
    if tokens is None:
        return None
    told, at = [], 0
    for token in tokens:
        own = token["token"]
        if PART not in own:  # else it is known only where the next one begins
            at = max(at, text.find(own, at))
        told.append({**token, "at": start + at})
        if text.startswith(own, at):
            at += len(own)
    return told


def _of_chat(tokens: Sequence[Token] | None) -> dict[str, Any] | None:
    if tokens is None:
        return None
    content = [{**_one(token), "top_logprobs": [_one(likely) for likely in token["top"]]} for token in tokens]
    return {"content": content, "refusal": None}


def _one(token: Token) -> dict[str, Any]:
    text = token["token"]
    # A token that is part of a character has U+FFFD for it: its bytes are not known here.
    known = None if PART in text else list(text.encode())
    return {"token": text, "logprob": _finite(token["logprob"]), "bytes": known}


def _of_text(tokens: Sequence[Token] | None) -> dict[str, Any] | None:
    if tokens is None:
        return None
    return {
        "tokens": [token["token"] for token in tokens],
        "token_logprobs": [_finite(token["logprob"]) for token in tokens],
        "top_logprobs": [_likely(token) for token in tokens],
        "text_offset": [token["at"] for token in tokens],
    }


def _likely(token: Token) -> dict[str, float]:
    """The most likely ones, and the one that was taken even where it is none of them."""
    likely: dict[str, float] = {}
    for one in (*token["top"], token):
        likely.setdefault(one["token"], _finite(one["logprob"]))
    return likely


def _finite(logprob: float | None) -> float:
    return LEAST if logprob is None else max(logprob, LEAST)
