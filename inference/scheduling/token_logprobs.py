"""What is reported of one token's probability: plain data, so that it can go out with a delta.

Knows: ids and numbers. Must not know: torch, text, how they were computed.
"""

from __future__ import annotations

from typing import NamedTuple


class TokenLogprobs(NamedTuple):
    """logprob: natural logarithm of the model's own probability of the chosen token, 0 or less.

    top: (token id, logprob) of the most likely tokens, most likely first; the chosen one may be among them or not.
    """

    token_id: int
    logprob: float
    top: list[tuple[int, float]]
