"""Token ids from outside, checked: an id beyond the model's width would read or write out of bounds.

Knows: numbers. Must not know: which model, which request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import index

from inference.checks import shown
from inference.config import ParameterError, SamplingParams
from inference.scheduling.request import RequestRefused


def checked_ids(what: str, ids: Iterable[int], width: int) -> list[int]:
    """The ids as plain ints. Raises RequestRefused("bad_params") unless all are whole numbers from 0 to width - 1."""
    given = list(ids)
    plain = given if set(map(type, given)) <= {int} else [_plain(what, item) for item in given]
    if plain and not (min(plain) >= 0 and max(plain) < width):
        wrong = next(item for item in plain if not 0 <= item < width)
        raise RequestRefused("bad_params", f"{what} holds token id {shown(wrong)}; this model's are 0 to {width - 1}")
    return plain


def _plain(what: str, item: object) -> int:
    if isinstance(item, bool) or not hasattr(item, "__index__"):
        raise RequestRefused("bad_params", f"{what} must be whole numbers, not {type(item).__name__}")
    return index(item)  # type: ignore[arg-type]


def checked_params(params: SamplingParams, width: int) -> SamplingParams:
    """The parameters, checked once more as at the door, and their token ids against the model's width.

    Raises RequestRefused("bad_params").
    """
    if not isinstance(params, SamplingParams):
        raise RequestRefused("bad_params", f"params must be SamplingParams, not {type(params).__name__}")
    try:
        params = replace(params)  # a new one runs all its checks
    except ParameterError as error:
        raise RequestRefused("bad_params", str(error)) from None
    checked_ids("stop_token_ids", params.stop_token_ids, width)
    checked_ids("logit_bias", (token_id for token_id, _ in params.logit_bias), width)
    return params
