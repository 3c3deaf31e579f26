"""Who holds each KV block: one request's id, or several where a prefix is shared.

Knows: block numbers and request ids, as they are told when blocks are taken and given back. Must not know: the pool,
requests. Kept beside the pool's counts, so that nobody has to search the block tables of all who run.
"""

from __future__ import annotations

from collections.abc import Iterable


class Holders:
    """A block's first holder is its owner; whoever holds it longest comes after it."""

    def __init__(self) -> None:
        self._owner: dict[int, str] = {}
        self._sharers: dict[int, list[str]] = {}  # of shared blocks: the others, in order

    def __len__(self) -> int:
        return len(self._owner)

    def owner(self, block: int) -> str | None:
        return self._owner.get(block)

    def took(self, request_id: str, blocks: Iterable[int]) -> None:
        """One reference more to each."""
        for block in blocks:
            if self._owner.setdefault(block, request_id) != request_id:
                self._sharers.setdefault(block, []).append(request_id)

    def gave_back(self, request_id: str, blocks: Iterable[int]) -> None:
        """The reference that it took."""
        for block in blocks:
            sharers = self._sharers.get(block)
            if self._owner.get(block) != request_id:
                if sharers is not None and request_id in sharers:
                    sharers.remove(request_id)
            elif sharers:
                self._owner[block] = sharers.pop(0)
            else:
                del self._owner[block]
            if sharers is not None and not sharers:
                del self._sharers[block]
