"""Guesses at the next tokens: where they come from, how long they are, and when there are none."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from inference.scheduling.prompt_lookup import FIRST, LONGEST_PAUSE, SHORTEST_PAUSE, SIZES, PromptLookup


def guess(lookup: PromptLookup, ids: list[int], room: int = 16) -> list[int]:
    return lookup.guess(len(ids), lambda start, end: ids[start:end], room)


def bold(most: int = 16) -> PromptLookup:
    """One that has been right so often that its guesses are as long as they may be."""
    lookup = PromptLookup(most)
    lookup.length = most
    return lookup


def test_what_followed_the_newest_tokens() -> None:
    assert guess(bold(), [1, 2, 3, 4, 5, 6, 9, 1, 2], 3) == [3, 4, 5]


def test_nothing_where_they_never_stood_before() -> None:
    for ids in ([], [1], [1, 1], [1, 2, 3, 4, 5], [7, 1, 8, 2, 9, 1]):
        assert guess(bold(), ids) == []


def test_more_tokens_in_common_count_more_than_a_later_place() -> None:
    assert guess(bold(), [1, 2, 3, 4, 70, 9, 3, 4, 80, 1, 2, 3, 4], 1) == [70]
    assert guess(bold(), [2, 3, 4, 70, 9, 3, 4, 80, 2, 3, 4], 1) == [70]
    assert guess(bold(), [3, 4, 70, 9, 3, 4, 80, 2, 3, 4], 1) == [80], "the last of two that are alike"


def test_a_text_that_comes_round_is_guessed_to_go_round_again() -> None:
    assert guess(bold(), [8, 5, 5, 5, 5, 5], 7) == [5] * 7
    assert guess(bold(), [8, 1, 2, 3, 1, 2, 3, 1, 2], 8) == [3, 1, 2, 3, 1, 2, 3, 1]


def longest_match(ids: Sequence[int]) -> int | None:
    """The place after the last earlier occurrence of the longest tail, by looking everywhere."""
    for size in SIZES:
        for end in range(len(ids) - 1, size - 1, -1):
            if list(ids[end - size : end]) == list(ids[-size:]):
                return end
    return None


@given(st.lists(st.integers(0, 3), max_size=60), st.data())
def test_as_by_looking_everywhere(ids: list[int], data: st.DataObject) -> None:
    """However the text comes: at once, token by token, or several at a time."""
    lookup, length = bold(), 0
    while length < len(ids):
        length = data.draw(st.integers(length + 1, len(ids)))
        place = longest_match(ids[:length])
        assert guess(lookup, ids[:length], 1) == ([] if place is None else [ids[place]])


def test_each_token_is_read_once() -> None:
    ids, read = [1, 2, 1, 2, 1, 2], []
    lookup = PromptLookup(4)
    for length in (3, 3, 5, 6):
        lookup.guess(length, lambda start, end: read.append((start, end)) or ids[start:end], 4)
    assert [span for span in read if span[0] < span[1]] == [(0, 3), (3, 5), (5, 6)]


def test_right_guesses_get_longer_and_wrong_ones_shorter() -> None:
    ids, lookup = [1, 2] * 20, PromptLookup(16)
    lengths = []
    for right in (FIRST, 2 * FIRST, 16, 16, 0, 0, 3, 0, 0):
        guessed = len(guess(lookup, ids))
        lengths.append(guessed)
        lookup.learn(guessed, right)
    assert lengths == [4, 8, 16, 16, 16, 8, 4, 4, 2]


def test_no_more_than_there_is_room_for() -> None:
    assert len(guess(bold(), [1, 2] * 20, 3)) == 3
    assert len(guess(PromptLookup(1), [1, 2] * 20)) == 1


def test_after_wrong_guesses_there_is_a_pause_that_gets_longer() -> None:
    lookup, ids, at = PromptLookup(1), [1, 2] * 4, []
    for _ in range(600):
        if guess(lookup, ids):
            at.append(len(ids))
            lookup.learn(1, 0)
        ids += [1, 2]
    pauses = [later - earlier for earlier, later in pairwise(at)]
    assert pauses[:6] == [SHORTEST_PAUSE, 8, 16, 32, LONGEST_PAUSE, LONGEST_PAUSE]
    assert guess(lookup, [*ids, *[1, 2] * LONGEST_PAUSE])
    lookup.learn(1, 1)
    lookup.learn(1, 0)
    assert not guess(lookup, [*ids, *[1, 2] * LONGEST_PAUSE, 1, 2])
    assert guess(lookup, [*ids, *[1, 2] * (LONGEST_PAUSE + SHORTEST_PAUSE)]), "one that was right makes it short again"


def test_none_once_it_is_stopped() -> None:
    lookup = bold()
    lookup.stop()
    assert guess(lookup, [1, 2] * 20) == []


def test_word_of_the_last_guess_does_not_start_it_again() -> None:
    """A guess that broke the pass is told of after it has stopped them all."""
    lookup = PromptLookup(1)
    assert guess(lookup, [1, 2] * 20)
    lookup.stop()
    lookup.learn(1, 0)
    assert guess(lookup, [1, 2] * (20 + LONGEST_PAUSE)) == []
