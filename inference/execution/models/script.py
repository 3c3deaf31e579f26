"""A scripted model's replies: which is given to what, and how far a sequence of ids has come in it.

Knows: the chat template's headers, a tokenizer, the file. Must not know: batches, pages, logits. The file:
`{"step_ms": 0, "vocab_size": 49152, "replies": [{"match": "...", "text": "..."}, {"match": "...", "token_ids": [1]}],
"default": {"text": "..."}}`. Given is the first reply whose `match` is in the last user message, or, where there is no
chat, in the whole text; else the default.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from inference.execution.models.errors import ModelError
from inference.text.tokenizer import Tokenizer

MAX_STEP_MS = 60_000
MAX_VOCAB_SIZE = 1 << 20


@dataclass(frozen=True, slots=True)
class Reply:
    match: str
    token_ids: np.ndarray  # int64


class Script:
    """`replies` are tried in order; the last one, the default, matches everything."""

    def __init__(self, replies: Sequence[Reply], tokenizer: Tokenizer, vocab_size: int, step_ms: float) -> None:
        self.vocab_size = vocab_size
        self.step_ms = step_ms
        self.eos_token_ids = tokenizer.eos_token_ids
        self._replies = replies
        self._tokenizer = tokenizer
        self._end = min(tokenizer.eos_token_ids)

    def token(self, reply: int, place: int) -> int:
        """Token number `place` of a reply; EOS from its end on."""
        token_ids = self._replies[reply].token_ids
        return int(token_ids[place]) if place < len(token_ids) else self._end

    def allows(self, reply: int, place: int, token: int) -> bool:
        """Whether `token` can stand at that place: past the end any can, since EOS may have been barred."""
        return place >= len(self._replies[reply].token_ids) or token == self.token(reply, place)

    def find(self, ids: np.ndarray) -> tuple[int, int]:
        """Which reply a sequence (int64 [n]) is in, and how many of its tokens are there already."""
        ends = self._answer_starts(ids)
        if not ends:
            return self._find_in_text(ids)
        for end in ends:
            # An earlier turn of the chat has more after it; but a reply may itself hold what looks like a new turn.
            reply, answered, token_ids = self._answer(ids, end)
            shared = min(len(answered), len(token_ids))
            is_whole = len(answered) == shared or end == ends[-1]
            if is_whole and np.array_equal(answered[:shared], token_ids[:shared]):
                return reply, len(answered)
        reply, answered, token_ids = self._answer(ids, ends[-1])
        return reply, _overlap(answered, token_ids)

    def _answer(self, ids: np.ndarray, start: int) -> tuple[int, np.ndarray, np.ndarray]:
        """If the answer starts there: its reply, what is there of it, what it should be."""
        reply = self._choose(self._last_message(ids[:start]))
        return reply, ids[start:], self._replies[reply].token_ids

    def _answer_starts(self, ids: np.ndarray) -> list[int]:
        """Where the assistant's messages begin, in order; empty where `ids` are no chat."""
        header = self._assistant_header
        if not len(header):
            return []
        ends = (np.flatnonzero(ids == header[0]) + len(header)).tolist()
        ends = [end for end in ends if np.array_equal(ids[end - len(header) : end], header)]
        # Before a chat's first answer a message was opened and closed; without that the header is part of a reply.
        asked = ends and np.isin(ids[: ends[0] - len(header)], list(self._tokenizer.control_ids)).any()
        return ends if asked else []

    def _last_message(self, ids: np.ndarray) -> str:
        """The last thing that the user says in a chat; the whole text where no user says anything."""
        text = self._tokenizer.decode_named(ids.tolist())
        _, header, message = text.rpartition(self._user_header)
        return self._control_name.split(message, maxsplit=1)[0] if header else self._tokenizer.decode(ids.tolist())

    def _find_in_text(self, ids: np.ndarray) -> tuple[int, int]:
        """Without a chat, the longest end of the sequence that is a beginning of its reply has been answered."""
        ended = len(ids) - len(np.trim_zeros(ids - self._end, "b"))
        overlaps = []
        for number, reply in enumerate(self._replies):
            with_ends = np.append(reply.token_ids, np.full(ended, self._end, np.int64))
            overlaps.append((_overlap(ids, with_ends), number))
        for length, number in sorted(overlaps, key=lambda found: -found[0]):
            if length and self._choose(self._tokenizer.decode(ids[: len(ids) - length].tolist())) == number:
                return number, length
        return self._choose(self._tokenizer.decode(ids.tolist())), 0

    def _choose(self, text: str) -> int:
        return next(number for number, reply in enumerate(self._replies) if reply.match in text)

    @cached_property
    def _assistant_header(self) -> np.ndarray:
        headers = self._tokenizer.chat_headers
        return np.asarray(self._tokenizer.encode_named(headers[1]) if headers else [], np.int64)

    @cached_property
    def _user_header(self) -> str:
        headers = self._tokenizer.chat_headers
        return headers[0] if headers else ""

    @cached_property
    def _control_name(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, sorted(self._tokenizer.control_names))) or "(?!)")


def _overlap(ids: np.ndarray, reply: np.ndarray) -> int:
    """Length of the longest end of `ids` that is a beginning of `reply`."""
    if not len(ids):
        return 0
    lengths = np.flatnonzero(reply[: len(ids)] == ids[-1])[::-1] + 1
    return next((n for n in lengths.tolist() if np.array_equal(ids[-n:], reply[:n])), 0)


def read_script(path: Path, tokenizer: Tokenizer) -> Script:
    """Read and check a script file. Raises ModelError with one sentence."""
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"the script {path} can't be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise ModelError(f"the script {path} is not JSON: {error}.") from error
    try:
        return _script(values, tokenizer)
    except ModelError as error:
        raise ModelError(f"the script {path} can't be used: {error}.") from error


def _script(values: Any, tokenizer: Tokenizer) -> Script:
    _check_fields("it", values, {"step_ms", "vocab_size", "replies", "default"})
    vocab_size, step_ms = values.get("vocab_size", tokenizer.vocab_size), values.get("step_ms", 0)
    if type(vocab_size) is not int or not tokenizer.vocab_size <= vocab_size <= MAX_VOCAB_SIZE:
        raise ModelError(
            f"vocab_size is {vocab_size!r}; it must be a whole number from {tokenizer.vocab_size}, "
            f"the tokenizer's, to {MAX_VOCAB_SIZE}"
        )
    if type(step_ms) not in (int, float) or not math.isfinite(step_ms) or not 0 <= step_ms <= MAX_STEP_MS:
        raise ModelError(f"step_ms is {step_ms!r}; it must be a number from 0 to {MAX_STEP_MS}")
    if not tokenizer.eos_token_ids:
        raise ModelError("its tokenizer has no token that ends an answer")
    given = values.get("replies", [])
    if not isinstance(given, list):
        raise ModelError("replies must be a list")
    replies = [_reply(f"reply {n}", value, tokenizer, vocab_size) for n, value in enumerate(given, 1)]
    default = {"text": ""} if values.get("default") is None else values["default"]
    _check_fields("default", default, {"text", "token_ids"})
    return Script(
        [*replies, _reply("default", {"match": "", **default}, tokenizer, vocab_size)], tokenizer, vocab_size, step_ms
    )


def _reply(name: str, value: Any, tokenizer: Tokenizer, vocab_size: int) -> Reply:
    _check_fields(name, value, {"match", "text", "token_ids"})
    match, text, token_ids = value.get("match"), value.get("text"), value.get("token_ids")
    if not isinstance(match, str):
        raise ModelError(f"{name} has no match; it must be a string")
    if (text is None) == (token_ids is None):
        raise ModelError(f"{name} must have either text or token_ids")
    if text is not None:
        if not isinstance(text, str):
            raise ModelError(f"the text of {name} must be a string")
        return Reply(match, np.asarray(tokenizer.encode_text(text, add_special_tokens=False), np.int64))
    if not isinstance(token_ids, list) or not all(type(i) is int and 0 <= i < vocab_size for i in token_ids):
        raise ModelError(f"the token_ids of {name} must be a list of whole numbers from 0 to {vocab_size - 1}")
    return Reply(match, np.asarray(token_ids, np.int64))


def _check_fields(name: str, value: Any, allowed: set[str]) -> None:
    if not isinstance(value, dict):
        raise ModelError(f"{name} must be a JSON object")
    for field in value:
        if field not in allowed:
            raise ModelError(f"{name} has an unknown field {field!r}; there are: {', '.join(sorted(allowed))}")
