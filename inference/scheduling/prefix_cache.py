"""The prefix cache: which blocks a request can begin with, and which can be found after it.

Knows: requests, the pool, the keys of blocks. Must not know: when a request runs. One user's blocks are never found by
another's requests, unless that is set (see prefix.py).
"""

from __future__ import annotations

from inference.scheduling.blocks import BlockPool
from inference.scheduling.prefix import PrefixHasher
from inference.scheduling.request import Request


class PrefixCache:
    """is_on: without it nothing is registered and nothing found.  share_between_users: one salt for all."""

    def __init__(self, pool: BlockPool, is_on: bool = True, share_between_users: bool = False) -> None:
        self._pool = pool
        self._hasher = PrefixHasher(pool.block_size) if is_on else None
        self._share_between_users = share_between_users

    def welcome(self, request: Request) -> None:
        """Give a new request its chain of keys; none is made yet."""
        if self._hasher is not None:
            request.prefix = self._hasher.chain("" if self._share_between_users else f"user {request.user}")

    def find(self, request: Request) -> list[int]:
        """Blocks that it can begin with, in order; no reference is taken.

        Its last token is never among them: its logits are what the next token is drawn from.
        """
        if request.prefix is None:
            return []
        full = (request.num_tokens - 1) // self._pool.block_size
        return self._pool.lookup(request.prefix.keys(full, request.tokens))

    def register(self, request: Request, start: int) -> None:
        """Blocks that were filled by its positions from `start` on can be found from now on."""
        if request.prefix is None:
            return
        size = self._pool.block_size
        for index in range(start // size, request.num_computed_tokens // size):
            self._pool.register(request.block_table[index], request.prefix.key(index, request.tokens))
