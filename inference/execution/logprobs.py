"""Logprobs of a token that was chosen, and of the most likely ones.

Knows: one row of the model's logits. Must not know: rules, temperature, how the token was chosen.
"""

from __future__ import annotations

import math

import numpy as np

from inference.execution.filters import largest
from inference.scheduling.token_logprobs import TokenLogprobs


def token_logprobs(logits: np.ndarray, token_id: int, count: int) -> TokenLogprobs:
    """Of float32 [vocab] as the model gave them: before bias, penalties, bars and temperature, as vLLM's default.

    `count` most likely tokens, fewer where fewer have a probability above 0; among equals the lower id comes first.
    """
    peak = float(logits.max())
    with np.errstate(over="ignore", under="ignore"):
        log_sum = math.log(np.exp(logits - np.float32(peak)).sum())  # NumPy sums pairwise: float32 is exact enough
    top = largest(logits, count) if count else np.empty(0, dtype=np.int64)
    top = top[np.argsort(-logits[top], kind="stable")]
    top = top[logits[top] > -np.inf]
    pairs = [(i, value - peak - log_sum) for i, value in zip(top.tolist(), logits[top].tolist(), strict=True)]
    return TokenLogprobs(token_id, float(logits[token_id]) - peak - log_sum, pairs)
