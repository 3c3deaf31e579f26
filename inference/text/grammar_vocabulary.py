"""A tokenizer's vocabulary as llguidance takes it: the bytes of each id.

Knows: pieces, what a first piece loses, which ids never stand in a text. Must not know: formats, requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from inference.text.grammar_trial import compiled_vocabulary, packed
from inference.text.pieces import Pieces

# No text holds this byte, and llguidance takes what begins with it for a control token.
_NEVER = b"\xff"


class GrammarTokenizer(Protocol):
    """What a grammar needs of a tokenizer."""

    @property
    def pieces(self) -> Pieces: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def control_ids(self) -> frozenset[int]: ...

    @property
    def eos_token_ids(self) -> frozenset[int]: ...


class Vocabulary:
    """Ids below `size` are the tokenizer's; `end_id` is an end of llguidance's own, since a model may have any number
    of them. Behind it stand the forms that ids have as the first of a text, where that is another: SentencePiece
    decoders take a space away there. `firsts`: the ids that have one, in that order. `silent`: as first ones they add
    nothing.  texts: the mask of all ids that can stand in a text.
    """

    def __init__(self, tokenizer: GrammarTokenizer) -> None:
        self.size = self.end_id = tokenizer.vocab_size
        pieces, control = tokenizer.pieces, tokenizer.control_ids
        middles = [b"" if i in control else _as_bytes(pieces[i]) for i in range(self.size)]
        changed = []
        if pieces.strip_start or pieces.drop_first:
            changed = [(i, form) for i in range(self.size) if middles[i] and (form := _first(pieces, i)) != middles[i]]
        tokens = [*map(_or_never, middles), _NEVER + b"end", *(_or_never(form) for _, form in changed)]
        self.firsts = np.array([i for i, _ in changed], dtype=np.int64)
        self.silent = np.array([i for i, form in changed if not form and pieces.strip_start <= 1], dtype=np.int64)
        self.texts = bitmask([i for i in range(self.size) if middles[i]], self.size)
        self._first_forms = {i: self.end_id + 1 + place for place, (i, _) in enumerate(changed)}
        self.compiled = compiled_vocabulary(tokens, self.end_id)
        self.packed = packed(tokens, self.end_id)

    def id_as_first(self, token_id: int) -> int:
        return self._first_forms.get(token_id, token_id)


def bitmask(ids: Sequence[int], size: int) -> npt.NDArray[np.int32]:
    """A mask of `size` ids in which these are set."""
    bits = np.zeros(-(-size // 32) * 32, dtype=np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def _as_bytes(piece: bytes | str) -> bytes:
    return piece.encode(errors="replace") if isinstance(piece, str) else piece


def _or_never(token: bytes) -> bytes:
    return token or _NEVER + b"none"


def _first(pieces: Pieces, token_id: int) -> bytes:
    """What an id adds as the first of a text; nothing where more than one character may have to go."""
    form = _as_bytes(pieces.first(token_id))
    stripped = pieces.strip_character.encode()
    if not pieces.strip_start or not form.startswith(stripped):
        return form
    return form.removeprefix(stripped) if pieces.strip_start == 1 else b""
