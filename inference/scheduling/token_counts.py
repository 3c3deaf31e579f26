"""Which tokens a request has had, and how often its answer: what penalties need.

Knows: ids and numbers. Must not know: torch, logits, parameters beyond whether there are penalties.
It is made once and lives as long as its request, through preemptions too, since they drop KV and never tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from inference.config import SamplingParams


class TokenCounts:
    """Distinct ids of prompt and answer, each with the number of times the answer holds it.

    An id is a column, not a place in a table as wide as the vocabulary: thousands of requests may wait with one.
    """

    __slots__ = ("_counts", "_ids", "_place")

    def __init__(self, prompt_ids: Sequence[int], output_ids: Iterable[int] = ()) -> None:
        self._ids = np.unique(np.asarray(prompt_ids, dtype=np.int64))
        self._counts = np.zeros(len(self._ids), dtype=np.int64)
        self._place = {token_id: place for place, token_id in enumerate(self._ids.tolist())}
        for token_id in output_ids:
            self.push(token_id)

    @classmethod
    def of(cls, params: SamplingParams, prompt_ids: Sequence[int], output_ids: Iterable[int]) -> TokenCounts | None:
        """What a request with these parameters needs: None without penalties. Only repetition asks for the prompt."""
        if not params.has_penalties:
            return None
        return cls(prompt_ids if params.repetition_penalty != 1.0 else (), output_ids)

    @property
    def ids(self) -> np.ndarray:
        """Int64 [distinct], in no order. Valid until the next push."""
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> np.ndarray:
        """How often each of `ids` is in the answer: 0 for those of the prompt alone."""
        return self._counts[: len(self._place)]

    def push(self, token_id: int) -> None:
        """Count the answer's next token. Takes the same time whatever came before."""
        place = self._place.setdefault(token_id, len(self._place))
        if place == len(self._ids):
            more = np.zeros(max(64, place), dtype=np.int64)
            self._ids, self._counts = np.concatenate((self._ids, more)), np.concatenate((self._counts, more))
        self._ids[place] = token_id
        self._counts[place] += 1
