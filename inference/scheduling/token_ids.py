"""Token ids from outside, checked: an id beyond the model's width would read or write out of bounds.

Knows: numbers. Must not know: which model, which request.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index

from inference.scheduling.request import RequestRefused


def checked_ids(what: str, ids: Iterable[int], width: int) -> list[int]:
    """The ids as plain ints. Raises RequestRefused("bad_params") unless all are whole numbers from 0 to width - 1."""
    given = list(ids)
    plain = given if set(map(type, given)) <= {int} else [_plain(what, item) for item in given]
    if plain and not (min(plain) >= 0 and max(plain) < width):
        wrong = next(item for item in plain if not 0 <= item < width)
        raise RequestRefused("bad_params", f"{what} holds token id {wrong}; this model's are 0 to {width - 1}")
    return plain


def _plain(what: str, item: object) -> int:
    if isinstance(item, bool) or not hasattr(item, "__index__"):
        raise RequestRefused("bad_params", f"{what} must be whole numbers, not {type(item).__name__}")
    return index(item)  # type: ignore[arg-type]
