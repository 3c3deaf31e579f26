"""What each id adds to a text: bytes or characters, by the decoder of tokenizer.json.

Knows: byte-level BPE, and the steps that SentencePiece tokenizers are converted to. Must not know: stop strings.
The steps follow the `tokenizers` library, whose `decode` is the specification.
"""

from __future__ import annotations

import re
from typing import Any

import tokenizers

from inference.text.errors import TokenizerError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(own)]
    return {chr(b): b for b in own} | {chr(256 + place): b for place, b in enumerate(others)}


_ALPHABET = _byte_level_alphabet()


class Pieces:
    """Pieces by id, made when first asked for. `special_ids` add nothing.

    byte_level: pieces are bytes of one UTF-8 text.  Otherwise a piece is text, or bytes for a byte token, and
    `strip_start` leading `strip_character`s of the whole text fall away. `drop_first`: this character falls away in the
    first piece, where a decoder writes spaces for it elsewhere. Raises TokenizerError for a decoder that is not known.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, decoder: dict[str, Any] | None) -> None:
        self._tokenizer = tokenizer
        self.special_ids = frozenset(i for i, t in tokenizer.get_added_tokens_decoder().items() if t.special)
        self._cache: dict[int, bytes | str] = {}
        self._replacements: list[tuple[str, str]] = []
        self._byte_tokens = False
        self.byte_level = False
        self.strip_start, self.strip_character = 0, " "
        self.drop_first = ""
        steps = (decoder or {}).get("decoders", [decoder])
        kinds = [step["type"] if step else None for step in steps]
        if kinds == ["ByteLevel"]:
            self.byte_level = True
            return
        for place, step in enumerate(steps):
            if step is None or not self._read(step, joined="Fuse" in kinds[:place]):
                raise TokenizerError(f"the tokenizer's decoder ({', '.join(map(str, kinds))}) is not supported.")

    def _read(self, step: dict[str, Any], joined: bool) -> bool:
        """Take in one step of the decoder; False where it is not understood. `joined`: it works on the whole text."""
        match step:
            case {"type": "Fuse"}:
                return True
            case {"type": "Strip", "content": character, "start": start, "stop": 0} if joined:
                self.strip_start, self.strip_character = start, character
                return True
            case {"type": "Replace", "pattern": {"String": old}, "content": new} if not joined:
                self._replacements.append((old, new))
                return True
            case {"type": "Metaspace", "replacement": old} if not joined:
                self._replacements.append((old, " "))
                self.drop_first = old if step.get("prepend_scheme", "always") != "never" else ""
                return True
            case {"type": "ByteFallback"} if not joined:
                self._byte_tokens = True
                return True
        return False

    def __getitem__(self, token_id: int) -> bytes | str:
        """What the id adds in the middle of a text; nothing for special ids and ids that don't exist."""
        piece = self._cache.get(token_id)
        if piece is None:
            piece = self._cache[token_id] = self._make(token_id)
        return piece

    def first(self, token_id: int) -> bytes | str:
        """What it adds as the first piece of a text."""
        if not self.drop_first or not self[token_id] or isinstance(self[token_id], bytes):
            return self[token_id]
        return (self._tokenizer.id_to_token(token_id) or "").replace(self.drop_first, "")

    def _make(self, token_id: int) -> bytes | str:
        token = self._tokenizer.id_to_token(token_id)
        if token is None or token_id in self.special_ids:
            return b"" if self.byte_level else ""
        if self.byte_level:
            if all(character in _ALPHABET for character in token):
                return bytes(_ALPHABET[character] for character in token)
            return token.encode()
        for old, new in self._replacements:
            token = token.replace(old, new)
        byte = _BYTE_TOKEN.fullmatch(token) if self._byte_tokens else None
        return bytes([int(byte[1], 16)]) if byte else token
