"""The scripted model: logits that force the tokens of a file, through the whole real path.

Knows: batches and its pages, a script. Must not know: requests, the scheduler, the sampler.
Its KV cache is real pages: the token ids themselves. It finds out what it was asked and how far it has answered by
reading a sequence through its block table, so a wrong slot or table makes a wrong answer, and a sequence that is
computed again goes on where it was. Where logits were asked for, pages also say how far the reply was: cheap decode.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from inference.execution.batch import Batch
from inference.execution.cache import KVCache
from inference.execution.models.script import Script, read_script
from inference.text.tokenizer import Tokenizer

MAX_MODEL_LEN = 1 << 17
FORCED = 1e4  # the logit of the next token; all others are 0
UNKNOWN = -1
MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class PagedTokens(KVCache):
    """The scripted model's KV cache; all arrays are [num_blocks, block_size], and there are no layers.

    tokens: int64, the ids.  Where logits were asked for: replies int32, which reply is given (else UNKNOWN);
    places int64, how many of its tokens were there before; digests uint64, of all ids up to here.
    """

    tokens: np.ndarray
    replies: np.ndarray
    places: np.ndarray
    digests: np.ndarray


class ScriptedModel:
    """Answers to `inference.execution.models.protocol.Model`; runs on the CPU."""

    def __init__(self, script: Script) -> None:
        self.vocab_size = script.vocab_size
        self.max_model_len = MAX_MODEL_LEN
        self.eos_token_ids = script.eos_token_ids
        self._script = script
        self._powers = _powers(1024)
        self._logits = torch.zeros(0, self.vocab_size)
        self._forced: list[int] = []  # columns set in the first rows of _logits

    def new_cache(self, num_blocks: int, block_size: int) -> PagedTokens:
        def pages(dtype: type) -> np.ndarray:
            return np.zeros((num_blocks, block_size), dtype)

        tokens, replies, places, digests = map(pages, (np.int64, np.int32, np.int64, np.uint64))
        return PagedTokens([], num_blocks, block_size, tokens, replies, places, digests)

    def kv_bytes_per_block(self, block_size: int) -> int:
        return (8 + 4 + 8 + 8) * block_size

    def forward(self, batch: Batch, cache: KVCache) -> torch.Tensor:
        """Logits, float32 [S, vocab_size], after `step_ms`. They are valid until the next call."""
        if not isinstance(cache, PagedTokens):
            raise TypeError("the scripted model works on the cache that its new_cache makes")
        due = time.monotonic() + self._script.step_ms / 1000
        cache.tokens.reshape(-1)[batch.slots] = batch.token_ids
        cache.replies.reshape(-1)[batch.slots] = UNKNOWN
        rows = batch.logits_rows
        sequences = np.searchsorted(batch.query_starts, rows, side="right") - 1
        wanted = zip(sequences.tolist(), (batch.positions[rows] + 1).tolist(), batch.slots[rows].tolist(), strict=True)
        logits = self._force([self._next(cache, batch.block_tables[r], length, slot) for r, length, slot in wanted])
        time.sleep(max(0.0, due - time.monotonic()))
        return logits

    def _next(self, cache: PagedTokens, table: np.ndarray, length: int, slot: int) -> int:
        """The token after the first `length` of a sequence; notes at `slot` what was found out."""
        size = cache.block_size
        ids = cache.tokens[table[: -(-length // size)]].reshape(-1)[:length]
        digest = self._digest(ids)
        reply, place = UNKNOWN, 0
        if length > 1:
            before = int(table[(length - 2) // size]), (length - 2) % size
            reply, place = self._go_on(cache, before, int(ids[-1]), length, digest)
        if reply == UNKNOWN:
            reply, place = self._script.find(ids)
        here = slot // size, slot % size
        cache.replies[here], cache.places[here], cache.digests[here] = reply, place, digest
        return self._script.token(reply, place)

    def _go_on(
        self, cache: PagedTokens, before: tuple[int, int], token: int, length: int, digest: int
    ) -> tuple[int, int]:
        """Reply and place, from what stands at the token before; UNKNOWN where nothing does, where the script did not
        give `token` there, or where what the pages hold of the sequence is not what it was."""
        reply, place = int(cache.replies[before]), int(cache.places[before])
        added = (token + 1) * int(self._powers[length - 1])
        if reply == UNKNOWN or (int(cache.digests[before]) + added) & MASK != digest:
            return UNKNOWN, 0
        return (reply, place + 1) if self._script.allows(reply, place, token) else (UNKNOWN, 0)

    def _digest(self, ids: np.ndarray) -> int:
        """A polynomial in the ids, modulo 2**64: tells whether pages were overwritten under a running sequence."""
        if len(ids) > len(self._powers):
            self._powers = _powers(2 * len(ids))
        powers = self._powers[: len(ids)]
        return (int(np.dot(ids.view(np.uint64), powers)) + int(powers.sum())) & MASK

    def _force(self, tokens: list[int]) -> torch.Tensor:
        # One buffer for all calls: 500 fresh rows cost more than all the rest of a step.
        if len(tokens) > len(self._logits):
            self._logits, self._forced = torch.zeros(len(tokens), self.vocab_size), []
        values = self._logits.numpy()
        values[np.arange(len(self._forced)), self._forced] = 0.0
        values[np.arange(len(tokens)), tokens] = FORCED
        self._forced = tokens
        return self._logits[: len(tokens)]


def _powers(count: int) -> np.ndarray:
    return np.cumprod(np.full(count, 6364136223846793005, np.uint64))


def load_scripted(path: Path, tokenizer: Tokenizer) -> ScriptedModel:
    """The model of a script file. Raises ModelError with one sentence for a file that is not one."""
    return ScriptedModel(read_script(path, tokenizer))
