"""The pool of KV blocks: who holds which, what is worth keeping, and how many are left.

Block tables and reference counts after vLLM's PagedAttention (SOSP 2023), the reuse of blocks that nobody holds after
vLLM's automatic prefix caching and SGLang's RadixAttention (NeurIPS 2024).
Knows: block numbers, reference counts, keys. Must not know: what a key is made of, what is in a block, requests, torch.

A block is always in one of three states, and free + cached + held = total holds after every call:

    free     nothing worth keeping is in it
    held     one reference or more; with a key it is full, computed, findable, and never written again
    cached   no reference, but a key: its contents can be had again until someone needs the room

    free    --allocate--> held
    held    --free, the last reference--> cached with a key, free without one
    cached  --share--> held;  --allocate, least recently used first--> held by another;  --forget--> free
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence


class PoolError(RuntimeError):
    """The pool's books are wrong, or a caller gave back what it did not hold. The engine must not go on."""


class BlockPool:
    """Blocks 0..num_blocks - 1. Blocks that were never used are counted, not listed, so a large pool costs nothing.

    A call costs as much as the blocks it names, however large the pool is; `check` and `clear_cache` look at all.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_size} positions can't hold anything")
        self.num_blocks, self.block_size = num_blocks, block_size
        self.evicted = 0  # cached blocks that were given away, since the start
        self._returned: list[int] = []  # free again; the last one given back is the first to be used
        self._next_unused = 0
        self._references: dict[int, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._key_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._changed: set[int] = set()  # since `take_changed`; never more than there are blocks

    @property
    def free_count(self) -> int:
        return len(self._returned) + self.num_blocks - self._next_unused

    @property
    def cached_count(self) -> int:
        return len(self._cached)

    @property
    def held_count(self) -> int:
        return len(self._references)

    @property
    def available_count(self) -> int:
        """Blocks that can be allocated. Whoever shares a cached block takes it out of these."""
        return self.free_count + self.cached_count

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that so many positions fill, the last one perhaps in part."""
        return -(-num_tokens // self.block_size)

    def references(self, block: int) -> int:
        """How many hold it; 0 for a cached or a free one."""
        return self._references.get(block, 0)

    def is_findable(self, block: int) -> bool:
        """Whether `lookup` can find it."""
        return block in self._key_of

    def take_changed(self) -> set[int]:
        """Blocks whose references changed, or whether they can be found, since the last call of this."""
        changed, self._changed = self._changed, set()
        if changed and max(changed) >= self.num_blocks:  # the pool was larger for a while
            return {block for block in changed if block < self.num_blocks}
        return changed

    def in_use(self) -> set[int]:
        """All blocks that are not free."""
        return {*self._references, *self._cached}

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks with one reference each, or None, and then nothing has changed.

        Free blocks come first, then cached ones, least recently used first; what was in those is lost. So whoever wants
        to go on from cached blocks shares them before it allocates the rest.
        """
        if count < 0:
            raise ValueError(f"{count} blocks can't be allocated")
        if count > self.available_count:
            return None
        reused = min(count, len(self._returned))
        unused = min(count - reused, self.num_blocks - self._next_unused)
        blocks = [self._returned.pop() for _ in range(reused)]
        blocks += range(self._next_unused, self._next_unused + unused)
        blocks += [self._evict() for _ in range(count - reused - unused)]
        self._next_unused += unused
        self._references.update(dict.fromkeys(blocks, 1))
        self._changed.update(blocks)
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """One more reference to each, held or cached; a cached one is held from now on.

        Raises PoolError where one is free, and then nothing has changed.
        """
        self._must_be_in(blocks, (self._references, self._cached), "is neither held nor cached")
        for block in blocks:
            self._cached.pop(block, None)
            self._references[block] = self._references.get(block, 0) + 1
        self._changed.update(blocks)

    def free(self, blocks: Sequence[int]) -> None:
        """Give back one reference to each; at the last one a block is cached if it has a key, else free.

        Name them in the order of the prefix: its tail will be evicted before its head, without which it can't be found.
        Raises PoolError where one isn't held, and then nothing has changed.
        """
        self._must_be_in(blocks, (self._references,), "is not held")
        self._changed.update(blocks)
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block]:
                continue
            del self._references[block]
            if block in self._key_of:
                self._cached[block] = None
            else:
                self._returned.append(block)

    def register(self, block: int, key: bytes) -> bool:
        """A held block is full and computed: from now on `lookup` finds it under this key.

        False, and it stays unfindable, where another block has the key: both hold the same, and one is enough.
        Raises PoolError for a block that isn't held, or that has another key.
        """
        self._must_be_in((block,), (self._references,), "is not held")
        if self._key_of.get(block, key) != key:
            raise PoolError(f"block {block} has another key already")
        if self._block_of.setdefault(key, block) != block:
            return False
        self._key_of[block] = key
        self._changed.add(block)
        return True

    def lookup(self, keys: Iterable[bytes]) -> list[int]:
        """The blocks of the longest run of registered keys from the first one on. No key after it is asked for.

        Takes no reference and counts as no use.
        """
        blocks = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def forget(self, blocks: Iterable[int]) -> None:
        """Never find these again: a cached one is free, a held one has no key. Without effect on others.

        Where a block is bad, all that follow it in its request were computed from it: name them too.
        """
        for block in blocks:
            key = self._key_of.pop(block, None)
            if key is None:
                continue
            del self._block_of[key]
            self._changed.add(block)
            if block in self._cached:
                del self._cached[block]
                self._returned.append(block)

    def resize(self, num_blocks: int) -> None:
        """The pool is blocks 0..num_blocks - 1 from now on. Whoever asks sees to it that memory is there for them.

        What is cached beyond is forgotten. Raises PoolError where a block beyond is held, and then nothing has changed.
        """
        if any(block >= num_blocks for block in self._references):
            raise PoolError(f"a block is held that a pool of {num_blocks} does not have")
        self.forget([block for block in self._cached if block >= num_blocks])
        self._returned = [block for block in self._returned if block < num_blocks]
        self._next_unused = min(self._next_unused, num_blocks)
        self.num_blocks = num_blocks

    def clear_cache(self) -> None:
        """Forget all: nothing is cached any more, and no held block will be."""
        self.forget(list(self._key_of))

    def check(self) -> None:
        """Raises PoolError unless the three states are disjoint and sum up to all, and keys and blocks fit."""
        free, cached, held = set(self._returned), self._cached.keys(), self._references.keys()
        if len(free) != len(self._returned):
            raise PoolError("a block is free twice")
        if free & cached or free & held or cached & held:
            raise PoolError("a block is in two states")
        if any(not 0 <= block < self._next_unused <= self.num_blocks for block in (*free, *cached, *held)):
            raise PoolError(f"a block is listed that was never given out; {self._next_unused} were")
        if any(count < 1 for count in self._references.values()):
            raise PoolError("a held block has no reference")
        if self.free_count + len(cached) + len(held) != self.num_blocks:
            counts = f"{self.free_count} free + {len(cached)} cached + {len(held)} held"
            raise PoolError(f"{counts} blocks are not {self.num_blocks}")
        if cached - self._key_of.keys() or self._key_of.keys() - cached - held:
            raise PoolError("a cached block has no key, or a free one has")
        if self._block_of != {key: block for block, key in self._key_of.items()}:
            raise PoolError("a key leads to a block that does not have it")
        if len(self._block_of) != len(self._key_of):
            raise PoolError("two blocks have one key")

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        del self._block_of[self._key_of.pop(block)]
        self.evicted += 1
        return block

    def _must_be_in(self, blocks: Sequence[int], states: Sequence[Container[int]], otherwise: str) -> None:
        if len(blocks) != len(set(blocks)):
            raise PoolError("a block is named twice in one call")
        for block in blocks:
            if not any(block in state for state in states):
                raise PoolError(f"block {block} {otherwise}")
