"""KV blocks of requests: how many they need, which they hold, which they can find again.

Knows: requests, the pool, the keys of blocks. Must not know: seats, the token budget, when a request runs.
One user's blocks are never found by another's requests, unless that is set (see prefix.py).
"""

from __future__ import annotations

from inference.scheduling.blocks import BlockPool, PoolError
from inference.scheduling.holders import Holders
from inference.scheduling.ledger import BlockChange
from inference.scheduling.prefix import PrefixHasher
from inference.scheduling.request import Request, RequestRefused


class KVManager:
    """Gives requests their blocks and takes them back; the only one who asks the pool for any.

    prefix_caching: full blocks can be found again.  share_between_users: by whoever has the same ids before.
    """

    def __init__(self, pool: BlockPool, prefix_caching: bool = False, share_between_users: bool = False) -> None:
        self.pool = pool
        self._hasher = PrefixHasher(pool.block_size) if prefix_caching else None
        self._share_between_users = share_between_users
        self._holders = Holders()
        self._told: tuple[BlockPool, int] | None = None  # the pool whose changes were told last, and its size then

    def welcome(self, request: Request) -> None:
        """A new request. Raises RequestRefused where the whole pool is too small for it."""
        needed, total = self.pool.blocks_for(request.max_total_tokens), self.pool.num_blocks
        if needed > total:
            raise RequestRefused(
                "prompt_too_long",
                f"the prompt has {len(request.prompt_ids)} tokens and max_tokens is {request.params.max_tokens}: "
                f"that can need {needed} KV blocks, and there are {total}",
            )
        if self._hasher is not None:
            request.prefix = self._hasher.chain("" if self._share_between_users else f"user {request.user}")

    def find(self, request: Request) -> list[int]:
        """Cached blocks that it can begin with, in order; no reference is taken.

        Its last token is never in one of them: its logits are what the next token is drawn from.
        """
        if request.prefix is None:
            return []
        full = (request.num_tokens - 1) // self.pool.block_size
        return self.pool.lookup(request.prefix.keys(full, request.tokens))

    def why_too_little(self, request: Request, found: list[int], promised: int) -> str | None:
        """Why it can't have its blocks now, with numbers; None if it can.

        promised: blocks that running requests will need soon. Nobody is admitted into those: the newcomer would be
        preempted within a few iterations, and its prefill would have been for nothing.
        """
        needed = self.will_need(request) - len(found)
        available = self.pool.available_count - sum(not self.pool.references(block) for block in found)
        if needed <= available - promised:
            return None
        kept = f", {min(available, promised)} of them kept for those running" if promised else ""
        return f"needs {needed} blocks, {available} free{kept}"

    def will_need(self, request: Request) -> int:
        """Blocks for all it has to compute now and one to grow into, but never more than it can come to need."""
        return self.pool.blocks_for(min(request.num_tokens + self.pool.block_size, request.max_total_tokens))

    def begin(self, request: Request, found: list[int]) -> None:
        """It begins with these cached blocks, from here on its own as well."""
        self.pool.share(found)
        self._holders.took(request.request_id, found)
        request.block_table, request.num_computed_tokens = found, len(found) * self.pool.block_size

    def grow(self, request: Request, count: int) -> bool:
        """Allocate what `count` more positions need. False, and nothing changed, where the pool has too little."""
        missing = self.pool.blocks_for(request.num_computed_tokens + count) - len(request.block_table)
        if missing <= 0:
            return True
        blocks = self.pool.allocate(missing)
        if blocks is None:
            return False
        self._holders.took(request.request_id, blocks)
        request.block_table += blocks
        return True

    def must_grow(self, request: Request, count: int) -> None:
        """`grow` for one that was told that there is room. Raises PoolError where there is none."""
        if not self.grow(request, count):
            raise PoolError(f"request {request.request_id} was admitted, and its blocks are not there")

    def room_to_draft(self, request: Request, promised: int) -> int:
        """How many tokens after its newest one can be drafted, which has a block already.

        promised: to all who run, this one included. It may take what it was promised, if there is enough for all.
        """
        held = len(request.block_table)
        own = max(0, self.will_need(request) - held)
        spare = self.pool.available_count - promised + own
        positions = (held + max(0, min(own, spare))) * self.pool.block_size
        return min(positions, request.max_total_tokens) - request.num_tokens

    def trim(self, request: Request) -> None:
        """Give back the blocks behind its last computed position. A new list, as for `release`."""
        held = self.pool.blocks_for(request.num_computed_tokens)
        if held < len(request.block_table):
            self._give_back(request, request.block_table[held:])
            request.block_table = request.block_table[:held]

    def computed(self, request: Request, start: int) -> None:
        """Its positions from `start` on were computed. The blocks that they filled can be found from now on."""
        if request.prefix is None:
            return
        size = self.pool.block_size
        for index in range(start // size, request.num_computed_tokens // size):
            self.pool.register(request.block_table[index], request.prefix.key(index, request.tokens))

    def release(self, request: Request) -> None:
        """It gives back all its blocks. A new list, since others may still hold the old one."""
        self._give_back(request, request.block_table)
        request.block_table = []

    def changes(self) -> tuple[BlockChange, ...]:
        """Blocks that are not as they were at the last call of this; at the first one, and after the pool was given
        another size, all that are not free."""
        pool, changed = self.pool, self.pool.take_changed()
        now = (pool, pool.num_blocks)
        if self._told != now:
            self._told, changed = now, pool.in_use()
        owner = self._holders.owner
        return tuple((b, pool.references(b), int(pool.is_findable(b)), owner(b)) for b in sorted(changed))

    def _give_back(self, request: Request, blocks: list[int]) -> None:
        self.pool.free(blocks)
        self._holders.gave_back(request.request_id, blocks)
