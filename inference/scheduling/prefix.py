"""Keys of full KV blocks: all that the contents of a block depend on, in one hash.

The KV of a block is decided by all ids up to its end. So its key is a hash of the key before it and of its own ids
(as in vLLM's automatic prefix caching; SGLang's RadixAttention, NeurIPS 2024, walks a tree of ids instead): two
requests have a key in common where they have the salt and all ids up to there in common, and nowhere else.
Knows: token ids and salts. Must not know: blocks, the pool, requests, torch.

Why a keyed cryptographic hash: a key that two prefixes had in common would hand one user the KV of another's text, and
without a secret, or with a weak hash, such a pair can be searched for.
Why a salt: whoever shares a cache can tell by the time to the first token whether a prefix was sent before
(CVE-2025-46570, in vLLM). Under another salt nothing is ever found, so there is nothing to measure.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from secrets import token_bytes

KEY_BYTES = 32


class PrefixHasher:
    """Makes keys. One an engine: its secret is new in each process, so no key means anything to another one."""

    def __init__(self, block_size: int) -> None:
        if block_size < 1:
            raise ValueError(f"blocks of {block_size} positions have no key")
        self.block_size = block_size
        self._secret = token_bytes(32)
        self._pack = struct.Struct(f"<{block_size}I").pack  # fixed width: no two lists of ids give the same bytes

    def root(self, salt: str) -> bytes:
        """What stands for the key before a request's first block. Who has the same salt can share blocks."""
        salted = salt.encode("utf-8", "surrogatepass")
        return blake2b(salted, digest_size=KEY_BYTES, key=self._secret, person=b"root").digest()

    def key(self, parent: bytes, token_ids: Sequence[int]) -> bytes:
        """Key of a full block after `parent`. Raises ValueError for fewer or more ids, and for what is no id."""
        try:
            packed = self._pack(*token_ids)
        except struct.error:
            raise ValueError(f"a block's key needs {self.block_size} token ids of 32 bits") from None
        return blake2b(parent + packed, digest_size=KEY_BYTES, key=self._secret, person=b"block").digest()

    def chain(self, salt: str) -> PrefixChain:
        """The keys of one request, none of them made yet."""
        return PrefixChain(self, salt)


class PrefixChain:
    """The keys of one request's full blocks. Each is made once, when it is first asked for, and kept.

    A request only ever grows, so they stay right however often it is preempted. `tokens(start, end)` gives the ids at
    positions start..end - 1 (`Request.tokens`); it is handed in with each call, so that a chain keeps no request alive.
    """

    __slots__ = ("_hasher", "_keys")

    def __init__(self, hasher: PrefixHasher, salt: str) -> None:
        self._hasher = hasher
        self._keys = [hasher.root(salt)]  # the parent of block i at i, so its own key at i + 1

    def __len__(self) -> int:
        """Blocks whose key is made."""
        return len(self._keys) - 1

    def key(self, index: int, tokens: Callable[[int, int], Sequence[int]]) -> bytes:
        """Key of block `index`. Raises ValueError where the request has too few tokens to fill it."""
        if index < 0:
            raise ValueError(f"there is no block {index}")
        size = self._hasher.block_size
        for block in range(len(self), index + 1):
            self._keys.append(self._hasher.key(self._keys[block], tokens(block * size, (block + 1) * size)))
        return self._keys[index + 1]

    def keys(self, count: int, tokens: Callable[[int, int], Sequence[int]]) -> Iterator[bytes]:
        """Keys of the first `count` blocks, one by one: where a lookup stops, no further one is made."""
        made = min(count, len(self))
        yield from islice(self._keys, 1, made + 1)
        for index in range(made, count):
            yield self.key(index, tokens)
