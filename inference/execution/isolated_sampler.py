"""The sampler, such that a row that raises fails alone.

Knows: that rows are independent of each other. Must not know: requests, how a token is drawn.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from inference.execution.sampler import NUMERICAL_ERROR, Sampler, SampleRow

log = logging.getLogger("batchscope.engine")

FAILED = NUMERICAL_ERROR - 1  # in place of a token id: sampling this row raised


class IsolatedSampler:
    """Answers as `Sampler` does; a token is a function of its row alone, so trying again row by row changes none."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[int]:
        """Token ids, NUMERICAL_ERROR or FAILED. Raises what says that the device itself is broken."""
        if not rows:
            return []
        try:
            return self._sampler.sample(logits, rows)
        except (torch.AcceleratorError, MemoryError):
            raise
        except Exception as error:
            log.warning("sampling_failed: %r; trying again row by row", error)
        return [self._sample_one(logits[i : i + 1], row) for i, row in enumerate(rows)]

    def _sample_one(self, logits: torch.Tensor, row: SampleRow) -> int:
        try:
            return self._sampler.sample(logits, [row])[0]
        except (torch.AcceleratorError, MemoryError):
            raise
        except Exception:
            log.exception("sampling_failed: one request fails")
            return FAILED
