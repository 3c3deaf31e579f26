"""The input gate: the bounds and the form that every JSON text from outside must have, by whichever door it comes.

Knows: sizes, depth, characters that are no text. Must not know: Django, sockets, what a message means.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import orjson

MAX_DEPTH = 32


class GateError(ValueError):
    """Not let in. `code` is one of the contract's; `value`: what was parsed before, if anything was."""

    def __init__(self, code: str, message: str, value: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.value = value or {}


def read_object(raw: bytes, limit: int, what: str) -> dict[str, Any]:
    """The JSON object in `raw`, of at most `limit` bytes. what: its name in sentences, such as "the frame".

    Raises GateError (too_large, bad_json, bad_message). Size comes before work; orjson itself refuses half surrogate
    pairs, NaN, Infinity and bytes that are not UTF-8.
    """
    if len(raw) > limit:
        raise GateError("too_large", f"{what} has {len(raw)} bytes; at most {limit} bytes are read")
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise GateError("bad_json", f"{what} is not JSON: {error.msg} at character {error.pos}") from None
    if not isinstance(value, dict):
        raise GateError("bad_message", f"{what} must be a JSON object")
    _check_values(value, what)
    return value


def _check_values(value: dict[str, Any], what: str) -> None:
    """Depth and NUL of all values and names, level by level: the input chooses the depth, and how many there are."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        inner = list(chain.from_iterable(map(_inside, level)))
        if any("\0" in one for one in inner if isinstance(one, str)):
            raise GateError("bad_message", f"{what} holds a NUL character, which is not text", value)
        level = [one for one in inner if isinstance(one, (dict, list))]
        if not level:
            return
    raise GateError("bad_json", f"{what} nests deeper than {MAX_DEPTH} levels", value)


def _inside(item: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return chain(item, item.values()) if isinstance(item, dict) else item
