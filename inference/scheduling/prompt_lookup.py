"""Guesses at the next tokens of one request: what followed the last time that its newest tokens stood there.

Knows: token ids of one request. Must not know: the batch, blocks, how a guess is verified.
After "Prompt lookup decoding" (Saxena, 2023): answers often repeat their prompt or themselves (quotes, code, tables),
and a look-up needs no second model. What a guess is worth is decided by the model alone (see engine.py), as in
speculative decoding (Leviathan et al., "Fast inference from transformers via speculative decoding", ICML 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

# Tokens that must agree, the longest first. Four in a row are rarely chance, so what follows them mostly follows again;
# fewer than two are mostly chance: after " the" anything comes.
SIZES = (4, 3, 2)
FIRST = 4  # tokens of the first guess, before it is known whether this text repeats
SHORTEST_PAUSE, LONGEST_PAUSE = 4, 64  # tokens without a guess after wrong ones
NEVER = 1 << 62


class PromptLookup:
    """The index of one request, and how long its guesses may be: twice as long after one that was right throughout,
    half as long after one that was wrong from its first token on. After a wrong guess of one token there is a pause,
    which gets longer each time, so that a text that doesn't repeat costs no more than its index.

    most: tokens of a guess at most.  length: of the next one at most.
    """

    __slots__ = ("_after", "_ids", "_indexed", "_most", "_pause", "_resumes_at", "length")

    def __init__(self, most: int) -> None:
        self.length = min(FIRST, most)
        self._most = most
        self._ids: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # tokens -> the place after them, where they stood last
        self._indexed = 1
        self._pause = SHORTEST_PAUSE
        self._resumes_at = 0

    def guess(self, num_tokens: int, tokens: Callable[[int, int], Sequence[int]], room: int) -> list[int]:
        """At most `room` tokens that may follow the first `num_tokens`; none where nothing like them stood before.

        tokens(start, end): the ids at these places (`Request.tokens`). They only ever grow: each is read once.
        """
        if num_tokens < self._resumes_at:
            return []
        ids = self._ids
        ids += tokens(len(ids), num_tokens)
        self._index()
        room = min(room, self.length)
        place = self._place_like_the_end()
        if place is None:
            return []
        period = len(ids) - place  # where it runs into the end, the text has come round, and goes round again
        return [ids[place + i % period] for i in range(room)]

    def learn(self, guessed: int, right: int) -> None:
        """Of the last guess so many tokens were right."""
        if right == guessed:
            self.length = min(self._most, 2 * self.length)
        if right:
            self._pause = SHORTEST_PAUSE
        elif self.length > 1:
            self.length //= 2
        else:
            self._resumes_at = max(self._resumes_at, len(self._ids) + self._pause)  # once stopped, stopped
            self._pause = min(LONGEST_PAUSE, 2 * self._pause)

    def stop(self) -> None:
        """No more guesses."""
        self._resumes_at = NEVER

    def _index(self) -> None:
        """All places but the end, which is what will be looked up."""
        ids, after = self._ids, self._after
        for end in range(self._indexed, len(ids)):
            for size in SIZES:
                if size <= end:
                    after[tuple(ids[end - size : end])] = end
        self._indexed = max(self._indexed, len(ids))

    def _place_like_the_end(self) -> int | None:
        """The place after the last earlier occurrence of the newest tokens, of as many of them as can be found."""
        for size in SIZES:
            if size < len(self._ids) and (place := self._after.get(tuple(self._ids[-size:]))) is not None:
                return place
        return None
