"""A toy model for tests of the engine: a token depends on every id before it, read through the block table.

Its cache is one int page a block. A wrong slot, table, position or context length makes another answer, and a batch
whose arrays disagree is refused. Logits are spread widely, so greedy and sampled answers differ; EOS comes at times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from inference.config import EngineConfig, SamplingParams
from inference.engine import Engine
from inference.execution.batch import Batch
from inference.execution.cache import KVCache
from inference.scheduling.outputs import Output

EOS = 0
VOCAB = 48
# One token is half a character, some are whole ones, some are two letters that make up stop strings.
PIECES = [
    b"",
    b"\xc3",
    b"\xa9",
    " é".encode(),
    "👋".encode(),
    *(bytes([97 + i % 26]) * (1 + i // 26) for i in range(43)),
]
NEVER = -1


@dataclass(frozen=True, slots=True)
class ToyCache(KVCache):
    """tokens: int64 [num_blocks, block_size]; `layers` is one pair, so that zeroing can be seen."""

    tokens: np.ndarray


class ToyModel:
    """Answers to `Model`. `breaks` says for which ids so far the logits are NaN; `batches` are those it was given.

    repeats: mostly the last id alone decides what is next, so that its text comes round; now and then it is all.
    """

    vocab_size = VOCAB
    eos_token_ids = frozenset({EOS})

    def __init__(self, max_model_len: int = 4096, seed: int = 0, eos_bonus: float = 0.0, repeats: bool = False) -> None:
        self.max_model_len = max_model_len
        self._repeats = repeats
        self.batches: list[Batch] = []
        self.breaks: Callable[[list[int]], bool] = lambda ids: False
        generator = np.random.default_rng(seed)
        self._logits = generator.normal(scale=3.0, size=(1021, VOCAB)).astype(np.float32)
        self._logits[:, EOS] += eos_bonus
        self._powers = np.cumprod(np.full(1 << 14, 48271, dtype=np.uint64))

    def new_cache(self, num_blocks: int, block_size: int) -> ToyCache:
        tokens = np.full((num_blocks, block_size), NEVER, dtype=np.int64)
        view = torch.from_numpy(tokens)
        return ToyCache([(view, view)], num_blocks, block_size, tokens)

    def kv_bytes_per_block(self, block_size: int) -> int:
        return 8 * block_size

    def forward(self, batch: Batch, cache: ToyCache) -> torch.Tensor:
        _check(batch, cache)
        self.batches.append(batch)
        cache.tokens.reshape(-1)[batch.slots] = batch.token_ids
        rows = np.searchsorted(batch.query_starts, batch.logits_rows, side="right") - 1
        logits = np.empty((len(rows), VOCAB), dtype=np.float32)
        for i, row in enumerate(rows):
            length = int(batch.positions[batch.logits_rows[i]]) + 1
            table = batch.block_tables[row, : -(-length // cache.block_size)]
            ids = cache.tokens[table].reshape(-1)[:length]
            digest = self._digest(ids)
            if self._repeats and digest % 16:
                digest = self._digest(ids[-1:])
            logits[i] = np.nan if self.breaks(ids.tolist()) else self._logits[digest % len(self._logits)]
        return torch.from_numpy(logits)

    def _digest(self, ids: np.ndarray) -> int:
        numbers = ids.astype(np.uint64) + np.uint64(7)
        return int((numbers * self._powers[: len(ids)]).sum() >> np.uint64(17))


def _check(batch: Batch, cache: ToyCache) -> None:
    """Raises AssertionError unless the batch's arrays tell one story."""
    assert [a.dtype.name for a in (batch.token_ids, batch.positions, batch.slots, batch.logits_rows)] == ["int64"] * 4
    assert [a.dtype.name for a in (batch.block_tables, batch.query_starts, batch.context_lens)] == ["int32"] * 3
    assert len(set(batch.slots.tolist())) == len(batch.slots), "two tokens in one slot"
    written: set[int] = set()
    held: Counter[int] = Counter()
    for row, (start, end) in enumerate(zip(batch.query_starts[:-1], batch.query_starts[1:], strict=True)):
        length, count = int(batch.context_lens[row]), int(end - start)
        positions = np.arange(length - count, length)
        table = batch.block_tables[row]
        blocks = -(-length // cache.block_size)
        assert batch.positions[start:end].tolist() == positions.tolist()
        size = cache.block_size
        assert batch.slots[start:end].tolist() == (table[positions // size] * size + positions % size).tolist()
        assert not table[blocks:].any(), "a table is not zero past its blocks"
        own = set(table[:blocks].tolist())
        assert len(own) == blocks, "a block twice in one table"
        held.update(own)
        written |= set((batch.slots[start:end] // size).tolist())
    assert all(held[block] == 1 for block in written), "a block is written that another request reads"
    assert batch.query_starts[-1] == len(batch.token_ids) == len(batch.positions) == len(batch.slots)
    wanted = set(batch.logits_rows.tolist())
    assert batch.logits_rows.tolist() == sorted(wanted)
    ends = {int(end) - 1 for end in batch.query_starts[1:]}
    assert all(row in ends or row + 1 in wanted for row in wanted), "not the last ones of a sequence"


class _ToyPieces:
    byte_level = True
    special_ids = frozenset({EOS})

    def __getitem__(self, token_id: int) -> bytes:
        return PIECES[token_id]


class ToyTokenizer:
    """Letters are tokens of their own. Nothing else can be encoded."""

    vocab_size = VOCAB
    eos_token_ids = frozenset({EOS})
    special_ids = frozenset({EOS})

    def __init__(self) -> None:
        self.pieces = _ToyPieces()

    def encode_text(self, text: str) -> list[int]:
        return [PIECES.index(character.encode()) for character in text]

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(PIECES[i] for i in ids).decode(errors="replace")


def toy_engine(model: ToyModel | None = None, **settings: object) -> Engine:
    """An engine over a toy model; settings of EngineConfig that fit a test by default."""
    config = {"block_size": 4, "kv_blocks": 64, "max_num_seqs": 8, "max_num_batched_tokens": 64, **settings}
    return Engine.from_parts(EngineConfig(**config), model or ToyModel(), ToyTokenizer(), "toy")  # type: ignore[arg-type]


def alone(prompt: list[int], params: SamplingParams) -> Output:
    """The answer of an engine that has nothing else to do and blocks enough."""
    return toy_engine(max_num_seqs=1, kv_blocks=1024).generate([prompt], params)[0]
