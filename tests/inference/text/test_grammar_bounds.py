"""Formats that are wrong or made to do harm: each is refused with a sentence, or compiled, in bounded time."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from inference.config import RequestRefused, SamplingParams
from inference.text import grammar, grammar_trial
from inference.text.grammar import GrammarError, GrammarState, compile_grammar
from inference.text.grammar_trial import TOO_BIG, TOO_LONG, packed, try_grammar
from inference.text.tokenizer import Tokenizer

BYTES = packed([*(bytes([byte]) for byte in range(256)), b"\xffend"], 256)


def regex(source: str) -> dict[str, Any]:
    return {"type": "regex", "regex": source}


def schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "schema": value}


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        value = {"type": "array", "items": value}
    return value


def doubling(depth: int, keyword: str) -> dict[str, Any]:
    """Definitions that each name the next one twice: written out they would be 2 ** depth."""
    definitions: dict[str, Any] = {
        f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(depth)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{depth}": {"type": "string"}}}


REFUSED = {
    "too long a regex": (regex("a" * 5000), "5000 characters; at most 4096"),
    "too long patterns": (schema({"anyOf": [{"type": "string", "pattern": "a" * 600}] * 7}), "4200 characters"),
    "a regex that never ends": (regex("(" * 300 + "a" + ")" * 300), ""),
    "not a regex": (regex("(a"), "unclosed group"),
    "look-ahead": (regex("a(?=b)"), "look-around"),
    "back-reference": (regex(r"(a)\1"), "backreferences are not supported"),
    "optional without end": (regex("a?" * 2000), "too complex"),
    "bytes": (regex(r"(?-u:\xff)"), ""),
    "nothing matches the regex": (regex("[a&&b]"), "no text can match"),
    "false": (schema(False), "nothing matches"),
    "unsatisfiable": (schema({"type": "string", "minLength": 5, "maxLength": 3}), "minLength"),
    "its own proof": (schema({"$ref": "#"}), "no text can match"),
    "must hold itself": (schema({"allOf": [{"$ref": "#"}]}), "no text can match"),
    "unknown type": (schema({"type": "strin"}), "strin"),
    "not yet": (schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
    "elsewhere": (schema({"$ref": "http://127.0.0.1:9/schema.json"}), "not present"),
    "a file": (schema({"$ref": "file:///etc/hostname"}), "not present"),
    "nowhere": (schema({"$ref": "#/$defs/none"}), "does not exist"),
    "a great multiple": (schema({"type": "integer", "multipleOf": 9_999_991}), "at most 10000"),
    "a great common multiple": (schema({"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}), ""),
    "too deep": (schema(nested(500)), "recursion limit"),
    "no number": (schema({"const": float("nan")}), ""),
    "half a character": (schema({"const": "\ud800"}), ""),
    "options of ours": (schema({"uniqueItems": True, "x-guidance": {"lenient": True}}), "uniqueItems"),
}
HOSTILE = {
    "nested counts": regex("(a{1,1000}){1,1000}b"),
    "nested counts of anything": regex("((.{1,100}x){1,100}y){1,100}b"),
    "backtracking": regex("(x+x+)+y"),
    "a million letters": regex(r"\w{1000000}"),
    "a blown-up automaton": regex("(a|b)*a(a|b){200}"),
    "counters side by side": regex("x(.{0,200}a.{0,200}b.{0,200}c.{0,200})*y"),
    "many counters": regex("x(" + "|".join(f".*{c}.{{{20 + i}}}" for i, c in enumerate("abcdefghijklm")) + ")y"),
    "classes": regex(r"(\p{L}\p{N}\p{Lu}){0,5000}"),
    "optional once begun": regex("x" + "a?" * 400),
    "optional in a string": schema({"type": "string", "pattern": "^" + "a?" * 2000 + "$"}),
    "a huge enum": schema({"enum": [f"{i * 7919 % 99991:x}" for i in range(6000)]}),
    "one long word": schema({"const": "x" * 60_000}),
    "many references": schema(doubling(300, "anyOf")),
    "references of everything": schema(doubling(100, "allOf")),
    "deep": schema(nested(100)),
    "most items": schema({"type": "array", "minItems": 10**9, "items": {"type": "integer"}}),
    "at most items": schema({"type": "array", "maxItems": 10**9, "items": {"type": "integer"}}),
    "longest": schema({"type": "string", "minLength": 10**9}),
    "must go on for ever": schema(
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"], "additionalProperties": False}
    ),
    "many short names": schema({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1500)}}),
    "many names": schema({"properties": {f"property{i}": {"type": "string"} for i in range(1500)}}),
    "overlapping names": schema({"patternProperties": {f".*{i}.*": {"type": "integer"} for i in range(40)}}),
    "all of these patterns": schema({"allOf": [{"type": "string", "pattern": f"^.*{i}.*$"} for i in range(12)]}),
    "large numbers": schema({"type": "integer", "minimum": 1, "maximum": 10**300}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_a_sentence(loaded: dict[str, Tokenizer], case: str) -> None:
    response_format, words = REFUSED[case]
    with pytest.raises(RequestRefused, match=r"^response_format: ") as refused:
        compile_grammar(response_format, loaded["default"])
    sentence = str(refused.value)
    assert refused.value.code == "bad_params"
    assert words in sentence
    assert len(sentence) < 250
    assert "\n" not in sentence
    assert "llguidance" not in sentence


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_formats_are_refused_or_can_be_followed(loaded: dict[str, Tokenizer], case: str) -> None:
    """The bound on time is the trial's own, see below; without one some of these would run for minutes."""
    SamplingParams(response_format=HOSTILE[case])  # it comes through the door
    try:
        some_steps(compile_grammar(HOSTILE[case], loaded["default"]).start())
        words = "followed"
    except RequestRefused as refused:
        words = refused.code
    except GrammarError as error:
        words = str(error)
    assert words in ("followed", "bad_params") or "too complex" in words


def some_steps(state: GrammarState) -> None:
    chance = random.Random(2)
    for _ in range(40):
        if state.ended:
            return
        allowed = np.flatnonzero(np.unpackbits(state.mask().view(np.uint8), bitorder="little"))
        state.advance(int(chance.choice(list(allowed))))


def test_compiling_without_end_is_cut_short() -> None:
    endless = 'start: %json {"type": "integer", "multipleOf": 9999991}'
    assert try_grammar(BYTES, endless) in (TOO_LONG, TOO_BIG)


def test_memory_is_bounded() -> None:
    """The program's bound on time is lifted, so that the one on memory must do."""
    changed = "t.CPU_SECONDS = 0.0; t.MOST_MEMORY = 1 << 28"
    lifted = f"import sys; sys.path.insert(0, sys.argv[1]); import grammar_trial as t; {changed}; t.main()"
    source = ("start: /" + "a?" * 20_000 + "/").encode()
    done = subprocess.run(
        [sys.executable, "-P", "-c", lifted, str(grammar_trial.__file__).rpartition("/")[0]],
        input=len(source).to_bytes(4, "little") + source + BYTES,
        capture_output=True,
        check=False,
    )
    assert done.returncode != 0
    assert b"memory allocation" in done.stderr


def test_a_trial_that_dies_refuses_the_format(loaded: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_trial, "__file__", "/nonexistent/trial.py")
    with pytest.raises(RequestRefused, match="needs too much memory"):
        compile_grammar(regex("never compiled before"), loaded["default"])


def test_what_was_refused_is_not_tried_again(loaded: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        with pytest.raises(RequestRefused, match="no text can match"):
            compile_grammar(regex("[x&&y]"), loaded["default"])
        monkeypatch.setattr(grammar, "try_grammar", lambda *_: pytest.fail("tried again"))


def test_grammars_that_nobody_uses_are_forgotten(loaded: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "try_grammar", lambda *_: "")
    tokenizer = loaded["byte_level"]
    first = compile_grammar(regex("first"), tokenizer)
    for i in range(grammar.MOST_KEPT - 1):
        compile_grammar(regex(f"other{i}"), tokenizer)
    assert compile_grammar(regex("first"), tokenizer) is first
    for i in range(grammar.MOST_KEPT):
        compile_grammar(regex(f"more{i}"), tokenizer)
    assert compile_grammar(regex("first"), tokenizer) is not first


def test_the_trial_needs_nothing_of_the_project() -> None:
    loaded_modules = "[name for name in sys.modules if name.startswith(('inference', 'numpy'))]"
    code = f"import sys, runpy; runpy.run_path(sys.argv[1]); print({loaded_modules})"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(grammar_trial.__file__)], capture_output=True, check=True, text=True
    )
    assert done.stdout.strip() == "[]"
