"""From logits to tokens: bias, penalties and bars, then greedy or temperature, top-k, top-p, min-p; logprobs.

Knows: logits, what is asked of each row. Must not know: requests, text, other rows' reasons.
A token is a function of (logits row, parameters, seed, index, tokens so far, grammar mask) alone: each row is worked on
by itself. So batch-mates don't matter, and a request that is dropped and computed again goes on with the same tokens.

Order for a row: NaN and +inf are refused; `logit_rules` (bias, penalties, bars); the largest if greedy, else `filters`
(temperature, top-k, top-p, min-p) and `randomness`. Logprobs are of the logits before all of this.

On a GPU rows that ask for no more than a temperature are drawn there, to the same tokens, and only ids leave it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from inference.config import SamplingParams
from inference.execution.filters import likely, weights_of
from inference.execution.logit_rules import with_rules
from inference.execution.logprobs import token_logprobs
from inference.execution.randomness import Noise
from inference.scheduling.token_counts import TokenCounts
from inference.scheduling.token_logprobs import TokenLogprobs
from kernels import ops

NUMERICAL_ERROR = ops.NUMERICAL_ERROR  # in place of a token id: the row holds NaN or +inf, or -inf alone
NO_TOKEN = -2  # in place of a token id: the logits are sound, and what the request asks for bars every token
GREEDY_BELOW = 1e-5  # a lower temperature differs from greedy only between logits closer than float32 can tell


class Sampled(NamedTuple):
    """token_id: below 0 where there is none.  logprobs: where params.logprobs asks for them and there is a token."""

    token_id: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class SampleRow:
    """What is asked of one row of logits.

    seed: the request's, 0 or more.  token_index: tokens of the answer before this one.
    end_ids: ids that would end the answer (EOS and stop ids); barred while token_index < params.min_tokens.
    counts: of prompt and answer so far; needed where params.has_penalties.
    allowed: what a grammar allows here, bool [vocab] or packed int32 [vocab / 32]; None for everything.
    """

    params: SamplingParams
    seed: int
    token_index: int
    end_ids: Collection[int] = ()
    counts: TokenCounts | None = None
    allowed: np.ndarray | None = None

    @property
    def is_greedy(self) -> bool:
        return self.params.temperature < GREEDY_BELOW

    @property
    def barred_ends(self) -> Collection[int]:
        return self.end_ids if self.token_index < self.params.min_tokens else ()

    @property
    def has_rules(self) -> bool:
        params = self.params
        return bool(params.logit_bias or params.has_penalties or self.barred_ends) or self.allowed is not None

    @property
    def is_plain(self) -> bool:
        """Whether the largest logit is all that is asked for."""
        return self.is_greedy and self.is_simple

    @property
    def is_simple(self) -> bool:
        """Whether a draw at a temperature, from all tokens, is the most that is asked for: what a device does alone."""
        params = self.params
        has_filters = params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0
        return (self.is_greedy or not has_filters) and params.logprobs is None and not self.has_rules


class Sampler:
    """Keeps nothing between calls. Used by one thread."""

    def __init__(self) -> None:
        self._noise = Noise()

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[Sampled]:
        """A token for each row of `logits`, float32 [S, vocab], on any device; it stays as it is.

        A row that can't be sampled gets NUMERICAL_ERROR or NO_TOKEN and does no harm to the others.
        Raises ValueError or IndexError where a row asks for what can't be (see `with_rules`).
        """
        if len(rows) != logits.shape[0]:
            raise ValueError(f"{len(rows)} rows are asked for, and there are {logits.shape[0]} rows of logits")
        if logits.device.type != "cpu":
            return self.sample_on_device(logits, rows)
        on_cpu = logits.numpy()
        ids, peaks = _argmax(on_cpu)
        ids = [i if math.isfinite(peak) else NUMERICAL_ERROR for i, peak in zip(ids, peaks, strict=True)]
        sampled = [Sampled(i) for i in ids]
        for place, row in enumerate(rows):
            if not row.is_plain and ids[place] != NUMERICAL_ERROR:
                sampled[place] = self._sample_row(on_cpu[place], row, ids[place], peaks[place])
        return sampled

    def sample_on_device(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[Sampled]:
        """`sample` by way of `ops.sample_rows`; rows that it can't serve or leaves undecided are moved to the host."""
        ids = _device_ids(logits, rows)
        sampled = [Sampled(i) for i in ids]
        moved = [
            place
            for place, row in enumerate(rows)
            if ids[place] != NUMERICAL_ERROR and (ids[place] == ops.UNDECIDED or not row.is_simple)
        ]
        if moved:
            for place, given in zip(moved, logits[moved].cpu().numpy(), strict=True):
                best = int(given.argmax())
                sampled[place] = self._sample_row(given, rows[place], best, float(given[best]))
        return sampled

    def _sample_row(self, given: np.ndarray, row: SampleRow, best: int, peak: float) -> Sampled:
        """best, peak: place and value of the largest of the logits that were given."""
        logits = given
        if row.has_rules:
            logits = with_rules(given, row.params, row.counts, row.allowed, row.barred_ends)
            best = int(logits.argmax())
            peak = float(logits[best])
            if not math.isfinite(peak):
                return Sampled(NO_TOKEN)
        token_id = best if row.is_greedy else self._draw(logits, row, peak)
        count = row.params.logprobs
        return Sampled(token_id, None if count is None else token_logprobs(given, token_id, count))

    def _draw(self, logits: np.ndarray, row: SampleRow, peak: float) -> int:
        ids, weights = likely(weights_of(logits, peak, row.params.temperature), row.params)
        place = self._noise.pick(weights, ids, row.seed, row.token_index)
        return place if ids is None else int(ids[place])


def _device_ids(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[int]:
    """Ids and codes of `ops.sample_rows`; of a row that it can't serve only the code for broken logits counts."""
    temperatures = [0.0 if row.is_greedy or not row.is_simple else row.params.temperature for row in rows]
    keys = np.array([[row.seed for row in rows], [row.token_index for row in rows]], dtype=np.uint64).view(np.int64)
    seeds, indices = torch.from_numpy(keys).to(logits.device, non_blocking=True)
    heat = torch.tensor(temperatures, dtype=torch.float32).to(logits.device, non_blocking=True)
    return ops.sample_rows(logits, heat, seeds, indices).tolist()


def _argmax(logits: np.ndarray) -> tuple[list[int], list[float]]:
    """Index and value of each row's maximum; NaN counts as larger than all numbers."""
    ids = logits.argmax(axis=1)
    return ids.tolist(), logits[np.arange(len(ids)), ids].tolist()
