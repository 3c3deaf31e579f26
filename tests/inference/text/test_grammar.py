"""Answers held to a format: whatever is drawn from the masks is a text of that format."""

from __future__ import annotations

import json
import random
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from inference.config import RequestRefused
from inference.text.detokenizer import IncrementalDetokenizer
from inference.text.grammar import GrammarError, GrammarState, compile_grammar
from inference.text.tokenizer import Tokenizer

OBJECT = {"type": "json_object"}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["é", "你好", 'q"uote', "a\\b"]}, "maxItems": 3},
        "mood": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    },
    "required": ["name", "age", "tags", "mood"],
    "additionalProperties": False,
}
REGEXES = [
    r"[a-z]+@[a-z]{2,8}\.(com|org)",
    r"(\d{4})-(0[1-9]|1[0-2])",
    r"^\+?[0-9 ]{3,12}$",
    r"ß|é|你好{1,3}",
    r"a/b\\\n\"c'",
    r" x?| yy",
    r"\$",
]


def regex(source: str) -> dict[str, Any]:
    return {"type": "regex", "regex": source}


def schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "schema": value}


def allowed_ids(state: GrammarState) -> np.ndarray:
    return np.flatnonzero(np.unpackbits(state.mask().view(np.uint8), bitorder="little"))


def is_person(value: Any) -> bool:
    return (
        list(value) == ["name", "age", "tags", "mood"]
        and isinstance(value["name"], str)
        and len(value["name"]) <= 20
        and type(value["age"]) is int
        and 0 <= value["age"] <= 150
        and len(value["tags"]) <= 3
        and all(tag in ("é", "你好", 'q"uote', "a\\b") for tag in value["tags"])
        and value["mood"] in (None, True, False)
    )


def piece(tokenizer: Tokenizer, token_id: int) -> bytes:
    found = tokenizer.pieces[token_id]
    return found.encode() if isinstance(found, str) else found


def towards_the_end(tokenizer: Tokenizer, ids: np.ndarray) -> int:
    """A token that closes what is open. In a string a z is allowed, and the quote comes first."""
    by_piece = {piece(tokenizer, i): int(i) for i in ids}
    in_string = b"z" in by_piece
    for wanted in (b'"',) if in_string else (b"}", b"]", b'"', b":", b"0", b"null"):
        if wanted in by_piece:
            return by_piece[wanted]
    return int(ids[0])


def walk(tokenizer: Tokenizer, format_: dict[str, Any], seed: int, steps: int = 60, most: int = 2000) -> list[int]:
    """Ids of a whole answer: `steps` random ones, then on towards the end."""
    state, chance, ids = compile_grammar(format_, tokenizer).start(), random.Random(seed), []
    while not state.ended and len(ids) < most:
        allowed = allowed_ids(state)
        ends = [int(i) for i in allowed if i in tokenizer.eos_token_ids]
        if ends and (len(ids) >= steps or chance.random() < 0.2):
            state.advance(ends[0])
            break
        texts = np.array([i for i in allowed if i not in tokenizer.eos_token_ids])
        token_id = int(chance.choice(list(texts))) if len(ids) < steps else towards_the_end(tokenizer, texts)
        state.advance(token_id)
        ids.append(token_id)
    assert state.ended
    return ids


def text_of(tokenizer: Tokenizer, ids: list[int]) -> str:
    detokenizer = IncrementalDetokenizer(tokenizer)
    return "".join(map(detokenizer.push, ids)) + detokenizer.finish()


@pytest.fixture(params=["default", "byte_level", "sentencepiece"])
def spelling(request: pytest.FixtureRequest, loaded: dict[str, Tokenizer]) -> Tokenizer:
    """Tokenizers that can spell anything."""
    return loaded[request.param]


@pytest.mark.parametrize("seed", range(8))
def test_random_walks_give_json_of_the_schema(spelling: Tokenizer, seed: int) -> None:
    value = json.loads(text_of(spelling, walk(spelling, schema(PERSON), seed)))
    assert is_person(value), value


@pytest.mark.parametrize("seed", range(8))
def test_random_walks_give_objects(spelling: Tokenizer, seed: int) -> None:
    assert isinstance(json.loads(text_of(spelling, walk(spelling, OBJECT, seed))), dict)


@pytest.mark.parametrize("source", REGEXES)
def test_random_walks_match_the_regex(spelling: Tokenizer, source: str) -> None:
    for seed in range(4):
        text = text_of(spelling, walk(spelling, regex(source), seed))
        assert re.fullmatch(source, text), text


def test_a_vocabulary_with_spaces_in_front_of_words(loaded: dict[str, Tokenizer]) -> None:
    """Its first piece loses its space, and a piece that is only a space adds nothing there."""
    tokenizer = loaded["metaspace"]
    for seed in range(20):
        assert re.fullmatch("the( the){0,9}", text_of(tokenizer, walk(tokenizer, regex("the( the){0,9}"), seed)))


def test_the_first_piece_may_carry_the_space_that_is_taken_away(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["sentencepiece"]
    state = compile_grammar(regex("the capital"), tokenizer).start()
    firsts = {piece(tokenizer, i) for i in allowed_ids(state)}
    assert {b"t", b" t", b" the", b" "} <= firsts
    ids = tokenizer.encode_text("the capital", add_special_tokens=False)
    for token_id in ids:
        assert token_id in allowed_ids(state)
        state.advance(token_id)
    assert state.ended
    assert text_of(tokenizer, ids) == "the capital"


def test_a_space_that_the_format_wants_first_is_not_the_one_that_is_lost(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["sentencepiece"]
    for seed in range(10):
        assert text_of(tokenizer, walk(tokenizer, regex(" the"), seed)) == " the"


def test_text_in_any_script_and_all_escapes_can_be_written(spelling: Tokenizer) -> None:
    text = json.dumps({"ключ": "삼겹살 你好 ďábel 🙂", "k": '"\\\n\t/'}, ensure_ascii=False)
    state = compile_grammar(OBJECT, spelling).start()
    for token_id in spelling.encode_text(text, add_special_tokens=False):
        state.advance(token_id)
    assert state.ended


def test_what_is_not_in_the_mask_raises_and_changes_nothing(spelling: Tokenizer) -> None:
    state = compile_grammar(schema(PERSON), spelling).start()
    chance = random.Random(1)
    for token_id in walk(spelling, schema(PERSON), 1)[:30]:
        allowed = set(allowed_ids(state).tolist())
        for other in chance.choices(range(spelling.vocab_size + 5), k=50):
            if other not in allowed:
                with pytest.raises(GrammarError):
                    state.advance(other)
        assert set(allowed_ids(state).tolist()) == allowed
        state.advance(token_id)


@pytest.mark.parametrize("bad", [-1, 1 << 40])
def test_ids_that_there_are_not_raise(loaded: dict[str, Tokenizer], bad: int) -> None:
    with pytest.raises(GrammarError):
        compile_grammar(OBJECT, loaded["default"]).start().advance(bad)


def test_end_ids_are_allowed_exactly_where_the_text_is_complete(spelling: Tokenizer) -> None:
    ends = set(spelling.eos_token_ids)
    state = compile_grammar(regex("ab?"), spelling).start(end_ids=[spelling.vocab_size + 70])
    ends.add(spelling.vocab_size + 70)  # the model's ids may go beyond the tokenizer's
    assert ends.isdisjoint(allowed_ids(state))
    with pytest.raises(GrammarError):
        state.advance(min(ends))
    state.advance(spelling.encode_text("a", add_special_tokens=False)[-1])
    assert ends < set(allowed_ids(state).tolist())
    assert not state.ended
    state.advance(max(ends))
    assert state.ended
    assert set(allowed_ids(state).tolist()) == ends
    with pytest.raises(GrammarError):
        state.advance(spelling.encode_text("b", add_special_tokens=False)[-1])


def test_it_has_ended_when_only_the_end_can_follow(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["default"]
    state = compile_grammar(regex("ab"), tokenizer).start()
    for token_id in tokenizer.encode_text("ab"):
        assert not state.ended
        state.advance(token_id)
    assert state.ended
    assert set(allowed_ids(state).tolist()) == set(tokenizer.eos_token_ids)


def test_control_tokens_are_never_allowed(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["byte_level"]
    state = compile_grammar(regex("(?s).*"), tokenizer).start()
    control = tokenizer.control_ids - tokenizer.eos_token_ids
    assert {"<think>", "<tool_call>"} <= {tokenizer.pieces[i].decode() for i in control}
    assert control.isdisjoint(allowed_ids(state))
    for token_id in tokenizer.encode_text("<think>"):  # as text it may stand there
        state.advance(token_id)
    for token_id in control:
        with pytest.raises(GrammarError):
            state.advance(token_id)


def test_spaces_have_an_end(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["default"]
    state = compile_grammar(OBJECT, tokenizer).start()
    state.advance(tokenizer.encode_text("{")[0])
    blanks = [tokenizer.encode_text(blank)[0] for blank in (" ", "\n")]
    taken = 0
    while (possible := [blank for blank in blanks if blank in allowed_ids(state)]) and taken < 1000:
        state.advance(possible[-1])
        taken += 1
    assert 10 < taken < 50


def test_depth_has_an_end(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["default"]
    state = compile_grammar(OBJECT, tokenizer).start()
    bracket = tokenizer.encode_text("[")[0]
    for token_id in tokenizer.encode_text('{"a":'):
        state.advance(token_id)
    depth = 0
    while bracket in allowed_ids(state) and depth < 1000:
        state.advance(bracket)
        depth += 1
    assert 20 < depth < 50


def test_requests_with_the_same_format_share_the_grammar_and_nothing_else(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["default"]
    grammar = compile_grammar(regex("abc"), tokenizer)
    assert compile_grammar(regex("abc"), tokenizer) is grammar
    one, other = grammar.start(), grammar.start()
    before = other.mask().copy()
    one.advance(tokenizer.encode_text("a")[0])
    assert (other.mask() == before).all()
    assert (one.mask() != before).any()


def test_an_answer_that_is_taken_up_elsewhere_replays_its_ids(spelling: Tokenizer) -> None:
    ids = walk(spelling, schema(PERSON), 3)
    straight, replayed = (compile_grammar(schema(PERSON), spelling).start() for _ in range(2))
    for token_id in ids[:20]:
        straight.mask()
        straight.advance(token_id)
        replayed.advance(token_id)  # without a look at the masks between
    assert (straight.mask() == replayed.mask()).all()


def test_a_mask_is_not_to_be_written_to(loaded: dict[str, Tokenizer]) -> None:
    state = compile_grammar(OBJECT, loaded["default"]).start()
    assert state.mask().dtype == np.int32
    assert state.mask().shape == (-(-loaded["default"].vocab_size // 32),)
    with pytest.raises(ValueError, match="read-only"):
        state.mask()[0] = -1


def test_threads_compile_while_others_step(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["default"]
    compile_grammar(OBJECT, tokenizer)
    with ThreadPoolExecutor(4) as threads:
        compiled = [threads.submit(compile_grammar, regex(f"x{i}{{2}}"), tokenizer) for i in range(4)]
        walks = [threads.submit(walk, tokenizer, OBJECT, seed) for seed in range(4)]
        texts = [text_of(tokenizer, done.result()) for done in walks]
        states = [done.result().start() for done in compiled]
    assert all(isinstance(json.loads(text), dict) for text in texts)
    assert all(allowed_ids(state).size for state in states)


@pytest.mark.parametrize("value", [True, {}])
def test_a_schema_without_wishes_gives_any_json(loaded: dict[str, Tokenizer], value: Any) -> None:
    for seed in range(5):
        json.loads(text_of(loaded["default"], walk(loaded["default"], schema(value), seed)))


def test_a_recursive_schema(loaded: dict[str, Tokenizer]) -> None:
    node = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
        "required": ["n", "next"],
        "additionalProperties": False,
    }
    for seed in range(5):
        text = text_of(
            loaded["default"], walk(loaded["default"], schema({"$ref": "#/$defs/node", "$defs": {"node": node}}), seed)
        )
        value = json.loads(text)
        while value is not None:
            assert set(value) == {"n", "next"}
            value = value["next"]


def test_a_vocabulary_that_cannot_spell_it_is_refused(loaded: dict[str, Tokenizer]) -> None:
    with pytest.raises(RequestRefused, match="no text can match") as refused:
        compile_grammar(regex("[🙂]"), loaded["metaspace"])
    assert refused.value.code == "bad_params"


def test_a_vocabulary_that_cannot_spell_the_rest_fails_when_it_comes_to_it(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["metaspace"]
    letters = [i for i in range(tokenizer.vocab_size) if tokenizer.pieces[i] == "t"]
    with pytest.raises((GrammarError, RequestRefused)):  # noqa: PT012
        state = compile_grammar(regex("t🙂"), tokenizer).start()
        state.advance(letters[0])
        state.mask()
