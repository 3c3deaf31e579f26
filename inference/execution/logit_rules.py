"""What a request adds to its logits and which tokens it bars, before anything is drawn.

Knows: one row of logits, parameters, counts of tokens. Must not know: temperature, randomness, other rows.
Order, as in vLLM: logit_bias, then repetition, frequency and presence penalty. Bars come last, so nothing lifts them:
what a grammar does not allow, then the ends of an answer that is shorter than min_tokens.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from inference.config import SamplingParams
from inference.scheduling.token_counts import TokenCounts

LARGEST = float(np.finfo(np.float32).max)
# Eight bits of a mask, lowest first -> what they add to eight logits: ten times as fast as a masked copy.
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_BARS = np.where(_BITS, np.float32(0.0), np.float32(-np.inf))


def with_rules(
    logits: np.ndarray,
    params: SamplingParams,
    counts: TokenCounts | None,
    allowed: np.ndarray | None,
    barred_ends: Collection[int],
) -> np.ndarray:
    """A copy of float32 [vocab] with a request's rules; all of it -inf where they leave no token.

    allowed: bool [about vocab], or packed int32 [vocab / 32] as llguidance and xgrammar fill it: id i is allowed where
        bit i % 32 of number i // 32 is set. Ids past its end are barred.
    barred_ends: ids that would end the answer too early. A grammar wins over them: they stay where it allows no other.
    Raises ValueError for penalties without counts, IndexError for an id that is not below vocab.
    """
    ruled = logits.copy()
    if params.logit_bias:
        ids, bias = zip(*params.logit_bias, strict=True)
        ruled[list(ids)] += np.array(bias, dtype=np.float32)
    if params.has_penalties:
        if counts is None:
            raise ValueError("the request has penalties, and its tokens were not counted")
        _penalise(ruled, params, counts)
    if allowed is not None:
        ruled += _bars(allowed, len(ruled))
    if barred_ends:
        _bar_ends(ruled, barred_ends, unless_alone=allowed is not None)
    return ruled


def _penalise(logits: np.ndarray, params: SamplingParams, counts: TokenCounts) -> None:
    """In place. Repetition (Keskar et al., "CTRL", 2019) divides positive logits and multiplies others, so that both
    sink; frequency is taken off for each time that the answer has the id, presence once."""
    ids, times = counts.ids, counts.counts
    values = logits[ids].astype(np.float64)
    penalty = params.repetition_penalty
    with np.errstate(over="ignore"):
        values = np.where(values > 0.0, values / penalty, values * penalty)
        values -= params.frequency_penalty * times + params.presence_penalty * (times > 0)
        logits[ids] = np.minimum(values, LARGEST)  # a penalty near 0 must not make infinity


def _bars(allowed: np.ndarray, vocab: int) -> np.ndarray:
    """Float32 [vocab] to be added: 0 for what is allowed, -inf for the rest."""
    if allowed.dtype == np.int32:
        packed = np.ascontiguousarray(allowed, dtype="<i4").view(np.uint8)
    elif allowed.dtype == np.bool_:
        packed = np.packbits(allowed, bitorder="little")
    else:
        raise ValueError(f"a mask of allowed tokens is bool or packed int32, not {allowed.dtype}")
    bars = np.take(_BARS, packed[: -(-vocab // 8)], axis=0).reshape(-1)[:vocab]
    missing = vocab - len(bars)
    return np.pad(bars, (0, missing), constant_values=-np.inf) if missing else bars


def _bar_ends(logits: np.ndarray, ends: Collection[int], unless_alone: bool) -> None:
    ids = [i for i in ends if 0 <= i < len(logits)]
    before = logits[ids]
    logits[ids] = -np.inf
    if unless_alone and logits.max() == -np.inf:
        logits[ids] = before
