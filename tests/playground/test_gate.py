"""The input gate: what comes in as JSON, and what is told to whoever sent something else."""

from __future__ import annotations

import orjson
import pytest

from playground.gate import MAX_DEPTH, GateError, read_object


def nested(depth: int) -> bytes:
    return b'{"a":' + b"[" * (depth - 1) + b"1" + b"]" * (depth - 1) + b"}"


def test_an_object_comes_in() -> None:
    assert read_object(b'{"a": [1, "\xe4\xbd\xa0"]}', 100, "the body") == {"a": [1, "你"]}
    assert read_object(nested(MAX_DEPTH), 1000, "the body")


@pytest.mark.parametrize(
    ("raw", "code", "words"),
    [
        (b'{"a": "' + b"x" * 100 + b'"}', "too_large", "has 109 bytes; at most 100"),
        (b"", "bad_json", "is not JSON"),
        (b"[]", "bad_message", "must be a JSON object"),
        (b'{"a": NaN}', "bad_json", "is not JSON"),
        (b'{"a": "\xff"}', "bad_json", "is not JSON"),
        (rb'{"a": "\ud800"}', "bad_json", "is not JSON"),
        (rb'{"a": ["x\u0000y"]}', "bad_message", "NUL"),
        (rb'{"a\u0000": 1}', "bad_message", "NUL"),
    ],
)
def test_what_does_not_come_in(raw: bytes, code: str, words: str) -> None:
    with pytest.raises(GateError, match=words) as caught:
        read_object(raw, 100, "the body")
    assert caught.value.code == code


def test_depth_is_bounded_however_deep_it_is() -> None:
    for depth in (MAX_DEPTH + 1, 500, 40_000):
        with pytest.raises(GateError) as caught:
            read_object(nested(depth), 1 << 20, "the body")
        assert caught.value.code == "bad_json"


def test_what_was_parsed_is_told_with_the_error() -> None:
    with pytest.raises(GateError) as caught:
        read_object(orjson.dumps({"ref": "7", "x": "\0"}), 100, "the frame")
    assert caught.value.value["ref"] == "7"
