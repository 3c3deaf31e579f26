import pytest
from support.toy import EOS, ToyTokenizer

from inference.answer import Answer
from inference.config import SamplingParams
from inference.scheduling.outputs import TokenDelta
from inference.scheduling.request import FinishReason, RequestRefused

HALF, OTHER_HALF = 1, 2  # of é
A, B, C, D = 5, 6, 7, 8  # letters


def answer(max_tokens: int = 20, **params: object) -> Answer:
    return Answer("name", ToyTokenizer(), SamplingParams(max_tokens=max_tokens, **params), {EOS})


def test_one_delta_for_each_token_that_brings_text() -> None:
    one = answer()
    assert [one.push(i) for i in (A, HALF, OTHER_HALF, B)] == [
        TokenDelta("name", 1, "a", [A]),
        None,
        TokenDelta("name", 2, "é", [HALF, OTHER_HALF]),
        TokenDelta("name", 3, "b", [B]),
    ]
    assert (one.text, one.reason, one.unsent_ids) == ("aéb", None, [])


def test_eos_ends_it_and_shows_nothing() -> None:
    one = answer()
    one.push(A)
    assert one.push(EOS) is None
    assert (one.reason, one.text, one.unsent_ids) == (FinishReason.STOP, "a", [EOS])


def test_ignored_eos_does_not_end_it() -> None:
    one = answer(ignore_eos=True)
    one.push(EOS)
    assert one.reason is None
    assert one.end_ids == frozenset()


def test_a_stop_id_ends_it_and_is_part_of_the_text() -> None:
    one = answer(stop_token_ids=[C])
    one.push(A)
    assert one.push(C) == TokenDelta("name", 2, "c", [C])
    assert one.reason is FinishReason.STOP


def test_max_tokens_ends_it_and_shows_what_was_held_back() -> None:
    one = answer(3, stop="bcd")
    one.push(A)
    assert one.push(B) is None
    assert one.push(C) == TokenDelta("name", 2, "bc", [B, C])
    assert one.reason is FinishReason.LENGTH


def test_eos_as_the_last_allowed_token_is_a_stop() -> None:
    one = answer(1)
    one.push(EOS)
    assert one.reason is FinishReason.STOP


def test_a_stop_string_is_never_shown() -> None:
    one = answer(stop=["bcd"])
    assert [one.push(i) for i in (A, B, C, D)] == [TokenDelta("name", 1, "a", [A]), None, None, None]
    assert (one.reason, one.text, one.unsent_ids) == (FinishReason.STOP, "a", [B, C, D])


def test_cut_shows_what_was_held_back() -> None:
    one = answer(stop=["bcd"])
    one.push(A)
    one.push(B)
    assert one.cut(FinishReason.CANCELLED) == TokenDelta("name", 2, "b", [B])
    assert (one.reason, one.seq) == (FinishReason.CANCELLED, 2)


@pytest.mark.parametrize("stop", [(), ("bcx", "cda")])
@pytest.mark.parametrize("at_once", [1, 2, 3, 7])
def test_telling_later_tells_the_same(stop: tuple[str, ...], at_once: int) -> None:
    """The end is known when a token is taken, whether by its id, by length or by a stop string."""
    ids = [A, HALF, OTHER_HALF, B, C, D, A]
    first, later = answer(7, stop=stop), answer(7, stop=stop)
    expected = [first.push(i) for i in ids]
    deltas = []
    for start in range(0, 7, at_once):
        group = ids[start : start + at_once]
        for i in group:
            later.take(i)
        assert (later.reason is None) == (start + at_once < 7)
        deltas += [later.tell() for _ in group]
    assert deltas == expected
    assert (later.text, later.seq, later.reason, later.unsent_ids) == (
        *(first.text, first.seq, first.reason),
        first.unsent_ids,
    )


def test_replay_numbers_the_deltas_as_the_first_time() -> None:
    ids = [A, HALF, OTHER_HALF, B, C, D, A]
    first = answer(stop=["bcx"])
    deltas = [first.push(i) for i in ids]
    for place in range(len(ids)):
        again = answer(stop=["bcx"])
        again.replay(ids[:place])
        assert [again.push(i) for i in ids[place:]] == deltas[place:]


@pytest.mark.parametrize("ids", [[A, EOS, B], [A] * 21])
def test_replay_refuses_what_goes_on_after_an_end(ids: list[int]) -> None:
    with pytest.raises(RequestRefused, match="goes on after its end") as refusal:
        answer().replay(ids)
    assert refusal.value.code == "bad_params"
