"""The sampler, such that a row that raises fails alone.

Knows: that rows are independent of each other. Must not know: requests, how a token is drawn.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from inference.execution.sampler import NO_TOKEN, Sampled, Sampler, SampleRow

log = logging.getLogger("batchscope.engine")

FAILED = NO_TOKEN - 1  # in place of a token id: sampling this row raised, or it could not be made


class IsolatedSampler:
    """Answers as `Sampler` does; a token is a function of its row alone, so trying again row by row changes none."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow | None]) -> list[Sampled]:
        """Tokens, or NUMERICAL_ERROR, NO_TOKEN or FAILED in their place. None is a row that could not be made.

        Raises what says that the device itself is broken.
        """
        places = [place for place, row in enumerate(rows) if row is not None]
        asked = [row for row in rows if row is not None]
        if len(asked) < len(rows):
            sampled = [Sampled(FAILED)] * len(rows)
            for place, token in zip(places, self._sample(logits[places], asked), strict=True):
                sampled[place] = token
            return sampled
        return self._sample(logits, asked)

    def _sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[Sampled]:
        if not rows:
            return []
        try:
            return self._sampler.sample(logits, rows)
        except (torch.AcceleratorError, MemoryError):
            raise
        except Exception as error:
            log.warning("sampling_failed: %r; trying again row by row", error)
        return [self._sample_one(logits[i : i + 1], row) for i, row in enumerate(rows)]

    def _sample_one(self, logits: torch.Tensor, row: SampleRow) -> Sampled:
        try:
            return self._sampler.sample(logits, [row])[0]
        except (torch.AcceleratorError, MemoryError):
            raise
        except Exception:
            log.exception("sampling_failed: one request fails")
            return Sampled(FAILED)
