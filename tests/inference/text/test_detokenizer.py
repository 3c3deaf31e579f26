"""Deltas joined are one decode of all ids; nothing is shown that has to be taken back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inference.text.detokenizer import IncrementalDetokenizer
from inference.text.tokenizer import Tokenizer

GREETING = "👋 삼겹살 ďábel"


class PiecesOfText:
    """A tokenizer whose ids stand for given strings, to say exactly what comes when."""

    special_ids: frozenset[int] = frozenset()
    byte_level = True

    def __init__(self, texts: Sequence[str]) -> None:
        self.pieces = self
        self._texts = texts

    def __getitem__(self, token_id: int) -> bytes:
        return self._texts[token_id].encode()


def stream(tokenizer: object, ids: Iterable[int], stop: Sequence[str] = ()) -> tuple[list[str], bool]:
    """What each push and then finish gives, up to a stop string."""
    detokenizer = IncrementalDetokenizer(tokenizer, stop)  # type: ignore[arg-type]
    shown = []
    for token_id in ids:
        shown.append(detokenizer.push(token_id))
        if detokenizer.stopped:
            return shown, True
    return [*shown, detokenizer.finish()], detokenizer.stopped


def texts(parts: Sequence[str], *stop: str) -> tuple[list[str], bool]:
    return stream(PiecesOfText(parts), range(len(parts)), stop)


def byte_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """One id for each byte of the text, from the vocabulary's single-byte tokens."""
    by_byte = {piece: i for i in range(tokenizer.vocab_size) if len(piece := tokenizer.pieces[i]) == 1}
    return [by_byte[bytes([byte])] for byte in text.encode()]


@pytest.mark.parametrize("kind", ["default", "byte_level", "sentencepiece"])
def test_byte_tokens_one_by_one(loaded: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = loaded[kind]
    ids = byte_ids(tokenizer, GREETING)
    shown, _ = stream(tokenizer, ids)
    assert "".join(shown) == tokenizer.decode(ids) == GREETING
    assert "\ufffd" not in "".join(shown)


def test_characters_arrive_when_they_are_whole(loaded: dict[str, Tokenizer]) -> None:
    shown, _ = stream(loaded["default"], byte_ids(loaded["default"], "👋é"))
    assert shown == ["", "", "", "👋", "", "é", ""]


@pytest.mark.parametrize("kind", ["default", "byte_level", "sentencepiece"])
def test_half_a_character(loaded: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = loaded[kind]
    half, rest = byte_ids(tokenizer, "살")[:2], byte_ids(tokenizer, "살")[2:]
    space = tokenizer.encode_text("x the", add_special_tokens=False)[1:]
    for ids in (half, half + space, half + space + rest, space + half, byte_ids(tokenizer, "é") + half):
        shown, _ = stream(tokenizer, ids)
        assert "".join(shown) == tokenizer.decode(ids)
    assert not any("\ufffd" in text for text in stream(tokenizer, space + half)[0][:-1])


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_ids_joined_are_one_decode(tokenizer: Tokenizer, data: st.DataObject) -> None:
    interesting = [i for i in range(tokenizer.vocab_size) if len(tokenizer.pieces[i]) <= 1][:600]
    one = st.integers(0, tokenizer.vocab_size + 2) | st.sampled_from(interesting) | st.integers(0, 300)
    ids = data.draw(st.lists(one, max_size=30))
    shown, _ = stream(tokenizer, ids)
    assert "".join(shown) == tokenizer.decode(ids)


@given(st.text(max_size=60) | st.text("🇩🇪👩‍💻é한▁ \n", max_size=30))
@settings(max_examples=100, deadline=None)
@example(" leading and  double  spaces ")
@example("▁already")
def test_any_text_streams_whole_characters(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode_text(text, add_special_tokens=False)
    shown, _ = stream(tokenizer, ids)
    whole = tokenizer.decode(ids)
    assert "".join(shown) == whole
    if "\ufffd" not in whole:
        assert all("\ufffd" not in piece for piece in shown)


def test_leading_spaces_of_sentencepiece(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["sentencepiece"]
    the = tokenizer._plain.token_to_id("▁the")
    space = tokenizer._plain.token_to_id("▁")
    assert stream(tokenizer, [the, the])[0] == ["the", " the", ""]
    assert stream(tokenizer, [space, the])[0] == ["", " the", ""]
    assert "".join(stream(tokenizer, [tokenizer._plain.token_to_id("<s>"), the])[0]) == "the"


def test_control_tokens_in_mid_answer_are_hidden(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["default"]
    wave = byte_ids(tokenizer, "👋")
    ids = [wave[0], 1, wave[1], 2, 2, wave[2], 0, wave[3], *tokenizer.encode_text(" hi")]
    assert "".join(stream(tokenizer, ids)[0]) == tokenizer.decode(ids) == "👋 hi"


def test_a_stop_string_over_many_tokens_is_not_shown() -> None:
    assert texts(["DEF", "G", "HI", "J", "more"], "DEFGHIJ") == (["", "", "", ""], True)
    assert texts(["DEF", "X"], "DEFGHIJ") == (["", "DEFX", ""], False)
    assert texts(["abc DEF", "G"], "DEFGHIJ") == (["abc ", "", "DEFG"], False)


@pytest.mark.parametrize(
    ("parts", "stop", "shown"),
    [
        (["one two"], ("two", "one"), ""),
        (["xabcdef"], ("cd", "abcdef"), "x"),
        (["aab"], ("ab",), "a"),
        (["aa", "ab", "c"], ("aab",), "a"),
        (["abab", "ac"], ("abac",), "ab"),
        (["end.\n", "\nUser:"], ("\n\nUser:",), "end."),
        (["é", "ü"], ("éü",), ""),
        (["abcabd", "x"], ("abd", "abcx"), "abc"),
    ],
)
def test_it_is_cut_where_the_first_match_begins(parts: list[str], stop: tuple[str, ...], shown: str) -> None:
    pieces, stopped = texts(parts, *stop)
    assert stopped
    assert "".join(pieces) == shown


def test_nothing_is_shown_after_a_stop_string(loaded: dict[str, Tokenizer]) -> None:
    detokenizer = IncrementalDetokenizer(PiecesOfText(["a STOP b", "c"]), ("STOP",))  # type: ignore[arg-type]
    assert detokenizer.push(0) == "a "
    assert detokenizer.stopped
    assert detokenizer.push(1) == detokenizer.finish() == ""


def test_a_stop_string_that_half_a_character_completes(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["default"]
    half = byte_ids(tokenizer, "살")[:2]
    assert stream(tokenizer, [*byte_ids(tokenizer, "ab"), *half], ("b\ufffd",)) == (["a", "", "", "", ""], True)


def longest_possible_start(text: str, stops: Sequence[str]) -> int:
    return max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=14),
    st.lists(st.text("ab", min_size=1, max_size=7), min_size=1, max_size=4),
)
@settings(max_examples=400, deadline=None)
def test_what_is_shown_is_all_that_is_safe(parts: list[str], stops: list[str]) -> None:
    whole = ""
    for seen in range(1, len(parts) + 1):
        whole += parts[seen - 1]
        met = [place for stop in stops if (place := whole.find(stop)) >= 0]
        safe = whole[: min(met)] if met else whole[: len(whole) - longest_possible_start(whole, stops)]
        detokenizer = IncrementalDetokenizer(PiecesOfText(parts), stops)  # type: ignore[arg-type]
        assert "".join(detokenizer.push(i) for i in range(seen)) == safe
        assert detokenizer.stopped == bool(met)
        assert safe + detokenizer.finish() == (safe if met else whole)
        if met:
            break


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_stop_strings_over_real_tokens(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(3, min(tokenizer.vocab_size - 1, 400)), min_size=1, max_size=20))
    whole = tokenizer.decode(ids)
    start = data.draw(st.integers(0, len(whole)))
    stop = whole[start : start + data.draw(st.integers(1, 6))] or "never"
    shown, stopped = stream(tokenizer, ids, (stop, "zzz"))
    assert stopped == (stop in whole)
    assert "".join(shown) == (whole[: whole.index(stop)] if stopped else whole)
