"""Ids to text while they come: what may be shown now, and no more.

Knows: pieces, UTF-8, stop strings. Must not know: requests, the scheduler. A pure function of the ids:
what `push` and `finish` return, joined, is one decode of all ids, cut where the first stop string begins.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from inference.text.pieces import Pieces

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class _HasPieces(Protocol):
    pieces: Pieces


class IncrementalDetokenizer:
    """The text of one answer. Work per token does not grow with the length of the answer.

    stopped: a stop string was met; the text from its first character on is never shown.
    """

    def __init__(self, tokenizer: _HasPieces, stop: Sequence[str] = ()) -> None:
        pieces = tokenizer.pieces
        self._decoder = _ByteLevelText(pieces) if pieces.byte_level else _PiecewiseText(pieces)
        self._stops = _StopStrings(stop) if stop else None

    @property
    def stopped(self) -> bool:
        return self._stops is not None and self._stops.met

    def push(self, token_id: int) -> str:
        """Text that may be shown now: whole characters, and nothing that can still become a stop string."""
        text = self._decoder.push(token_id)
        return self._stops.push(text) if self._stops and text else text

    def finish(self) -> str:
        """The rest. Half a character at the end becomes U+FFFD, as in one decode of all ids."""
        text = self._decoder.finish()
        return self._stops.push(text) + self._stops.finish() if self._stops else text


class _ByteLevelText:
    """Byte-level BPE: all pieces are bytes of one UTF-8 text."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._decode = _Utf8Decoder(errors="replace").decode

    def push(self, token_id: int) -> str:
        return self._decode(self._pieces[token_id])  # type: ignore[arg-type]

    def finish(self) -> str:
        return self._decode(b"", True)


class _PiecewiseText:
    """SentencePiece: pieces of text, and runs of byte tokens. `decode` shows a run as U+FFFD throughout unless all of
    it is valid UTF-8, so a run is known only when it has ended."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._run = bytearray()
        self._is_first = True
        self._to_strip = pieces.strip_start

    def push(self, token_id: int) -> str:
        piece = self._pieces[token_id]
        if not piece:  # a special token, or an id that does not exist
            return ""
        if self._is_first:
            piece = self._pieces.first(token_id)
            self._is_first = False
        if isinstance(piece, bytes):
            self._run += piece
            return ""
        return self._strip(self._end_run() + piece)

    def finish(self) -> str:
        return self._strip(self._end_run())

    def _end_run(self) -> str:
        run = bytes(self._run)
        self._run.clear()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(run)

    def _strip(self, text: str) -> str:
        while self._to_strip and text:
            if text[0] != self._pieces.strip_character:
                self._to_strip = 0
            else:
                self._to_strip -= 1
                text = text[1:]
        return text


class _StopStrings:
    """Holds back text that may become a stop string (Knuth, Morris and Pratt's automaton for each of them)."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [(stop, _borders(stop)) for stop in dict.fromkeys(stops)]
        self._matched = [0] * len(self._stops)  # characters of each stop string that the text ends with
        self._first_characters = frozenset(stop[0] for stop, _ in self._stops)
        self._held = ""
        self.met = False

    def push(self, text: str) -> str:
        if self.met:
            return ""
        if not self._held and self._first_characters.isdisjoint(text):
            return text
        pending = self._held + text
        begins = [begin for i in range(len(self._stops)) if (begin := self._advance(i, text)) is not None]
        if begins:
            self.met = True
            shown, self._held = pending[: len(self._held) + min(begins)], ""
            return shown
        cut = len(pending) - max(self._matched)
        self._held = pending[cut:]
        return pending[:cut]

    def finish(self) -> str:
        """What was held back, since it can no longer become a stop string."""
        held, self._held = self._held, ""
        return held

    def _advance(self, i: int, text: str) -> int | None:
        """Read on for stop string i. Where it begins, relative to `text` (negative: in what was held), if it is met."""
        stop, borders = self._stops[i]
        matched = self._matched[i]
        for place, character in enumerate(text, 1):
            while matched and stop[matched] != character:
                matched = borders[matched - 1]
            if stop[matched] == character:
                matched += 1
            if matched == len(stop):
                return place - matched
        self._matched[i] = matched
        return None


def _borders(stop: str) -> list[int]:
    """For each prefix of `stop`, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    length = 0
    for place in range(1, len(stop)):
        while length and stop[place] != stop[length]:
            length = borders[length - 1]
        if stop[place] == stop[length]:
            length += 1
        borders[place] = length
    return borders
