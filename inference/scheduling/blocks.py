"""The pool of KV blocks: who holds which, and how many are left (vLLM's PagedAttention, SOSP 2023).

Knows: block numbers and reference counts. Must not know: what is in a block, requests, torch.
The pool's equation, free + cached + held = total, holds after every call. Nothing is cached yet: `cached_count` is 0
until full blocks of a shared prefix are kept after their last holder has gone.
"""

from __future__ import annotations

from collections.abc import Sequence


class PoolError(RuntimeError):
    """The pool's books are wrong, or a caller gave back what it did not hold. The engine must not go on."""


class BlockPool:
    """Blocks 0..num_blocks - 1. Blocks that were never used are counted, not listed, so a large pool costs nothing."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_size} positions can't hold anything")
        self.num_blocks, self.block_size = num_blocks, block_size
        self._returned: list[int] = []  # free again; the last one given back is the first to be used
        self._next_unused = 0
        self._references: dict[int, int] = {}

    @property
    def free_count(self) -> int:
        return len(self._returned) + self.num_blocks - self._next_unused

    @property
    def cached_count(self) -> int:
        return 0

    @property
    def held_count(self) -> int:
        return len(self._references)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that so many positions fill, the last one perhaps in part."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks with one reference each, or None, and then nothing has changed."""
        if count < 0:
            raise ValueError(f"{count} blocks can't be allocated")
        if count > self.free_count:
            return None
        reused = min(count, len(self._returned))
        blocks = [self._returned.pop() for _ in range(reused)]
        blocks += range(self._next_unused, self._next_unused + count - reused)
        self._next_unused += count - reused
        self._references.update(dict.fromkeys(blocks, 1))
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """One more reference to each. Raises PoolError for a block that nobody holds."""
        self._must_be_held(blocks)
        for block in blocks:
            self._references[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Give back one reference to each; at the last one a block is free. Raises PoolError where one isn't held."""
        self._must_be_held(blocks)
        for block in reversed(blocks):
            self._references[block] -= 1
            if not self._references[block]:
                del self._references[block]
                self._returned.append(block)

    def check(self) -> None:
        """Raises PoolError unless free, cached and held blocks are disjoint and sum up to all."""
        free = set(self._returned)
        if len(free) != len(self._returned) or free & self._references.keys():
            raise PoolError("a block is free twice, or free and held")
        if any(not 0 <= block < self._next_unused for block in (*free, *self._references)):
            raise PoolError(f"a block is free or held that was never given out; {self._next_unused} were")
        if any(count < 1 for count in self._references.values()):
            raise PoolError("a held block has no reference")
        counts = f"{self.free_count} free + {self.cached_count} cached + {self.held_count} held"
        if self.free_count + self.cached_count + self.held_count != self.num_blocks:
            raise PoolError(f"{counts} blocks are not {self.num_blocks}")

    def _must_be_held(self, blocks: Sequence[int]) -> None:
        if len(blocks) != len(set(blocks)):
            raise PoolError("a block is named twice in one call")
        for block in blocks:
            if block not in self._references:
                raise PoolError(f"block {block} is not held")
