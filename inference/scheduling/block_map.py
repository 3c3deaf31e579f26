"""The state of every KV block after an iteration, rebuilt from the changes that the ledger's records tell.

Knows: what a change says. Must not know: the pool, the broker, how a map is drawn.

A record's `blocks` are [block, references, cached, owner] for each block that is not as it was at the record before.
The first record of an engine process begins from an empty map, and so does one whose pool has another size than the
one before: it names every block that is not free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Change = Sequence[Any]  # block, references, cached (0 or 1), owner (a request's id or None)


class BlockMap:
    """held: references and owner of each held block.  findable: for each block 1 where it can be found again."""

    def __init__(self, total: int = 0) -> None:
        self.held: dict[int, tuple[int, str | None]] = {}
        self.findable = bytearray(total)

    @property
    def total(self) -> int:
        return len(self.findable)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockMap) and (self.held, self.findable) == (other.held, other.findable)

    def apply(self, changes: Iterable[Change], total: int) -> None:
        """What one record tells. Raises ValueError for a block that the pool of `total` does not have."""
        if total != self.total:
            self.held, self.findable = {}, bytearray(total)
        for block, references, cached, owner in changes:
            if not 0 <= block < total:
                raise ValueError(f"there is no block {block} in a pool of {total}")
            self.findable[block] = cached
            if references:
                self.held[block] = (references, owner)
            else:
                self.held.pop(block, None)

    def to_json(self, start: int = 0, stop: int | None = None) -> dict[str, Any]:
        """`total`, `blocks` from start to stop as [references, cached, index into `owners` or -1], and `owners`."""
        index: dict[str, int] = {}
        blocks = []
        for block in range(start, self.total if stop is None else min(stop, self.total)):
            references, owner = self.held.get(block, (0, None))
            place = -1 if owner is None else index.setdefault(owner, len(index))
            blocks.append([references, self.findable[block], place])
        return {"total": self.total, "blocks": blocks, "owners": list(index)}

    # A keyframe: the held blocks as JSON-ready data, and `findable` as it is.

    def keyframe(self) -> tuple[list[list[Any]], bytes]:
        held = [[block, references, owner] for block, (references, owner) in self.held.items()]
        return held, bytes(self.findable)

    @classmethod
    def of_keyframe(cls, held: Iterable[Sequence[Any]], findable: bytes) -> BlockMap:
        made = cls()
        made.findable = bytearray(findable)
        made.held = {block: (references, owner) for block, references, owner in held}
        return made
