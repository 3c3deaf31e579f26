"""The batch of one iteration: flat token rows, no padding (Orca's selective batching).

Knows: ids, positions, slots, block tables as numpy arrays. Must not know: torch, text, why a row is in the batch.
Linear layers run once over all T tokens; attention runs per sequence through its block table.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Batch:
    """T tokens of R sequences. Sequence r owns the token rows query_starts[r]:query_starts[r + 1].

    token_ids: int64 [T].  positions: int64 [T], place in the sequence, from 0.
    slots: int64 [T], where each token's KV goes: block * block_size + offset.
    block_tables: int32 [R, longest table]; entries past a sequence's blocks are 0 and never read.
    query_starts: int32 [R + 1].  context_lens: int32 [R], positions attended to, those of this iteration included.
    logits_rows: int64 [S], the token rows whose logits are wanted (the last ones of each sequence that samples).
    """

    token_ids: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    block_tables: np.ndarray
    query_starts: np.ndarray
    context_lens: np.ndarray
    logits_rows: np.ndarray
