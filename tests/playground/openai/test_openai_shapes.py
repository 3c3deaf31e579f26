"""The parts of answers, as OpenAI's clients read them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from inference.config import RequestRefused
from playground.http.openai.errors import CallError, as_call_error, error_response, param_of
from playground.http.openai.shapes import ChatShape, CompletionShape, placed


def token(text: str, logprob: float | None = -0.5, top: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"token_id": 1, "token": text, "logprob": logprob, "top": top or []}


def test_bytes_of_tokens() -> None:
    """Of a token that is part of a character nobody knows them here."""
    content = ChatShape().choice(0, "é", [token("é"), token("\ufffd")], "stop")["logprobs"]["content"]
    assert [one["bytes"] for one in content] == [list("é".encode()), None]


def test_what_has_no_chance_has_a_number() -> None:
    tokens = [token("a", -math.inf, [token("b", None), token("c", -3.0)])]
    [chat] = ChatShape().choice(0, "a", tokens, "stop")["logprobs"]["content"]
    assert (chat["logprob"], [one["logprob"] for one in chat["top_logprobs"]]) == (-9999.0, [-9999.0, -3.0])
    text = CompletionShape().choice(0, "a", placed(tokens, "a", 0), "stop")["logprobs"]
    assert (text["token_logprobs"], text["top_logprobs"]) == ([-9999.0], [{"b": -9999.0, "c": -3.0, "a": -9999.0}])


def offsets(text: str, *tokens: str, start: int = 0) -> list[int]:
    piece = CompletionShape().piece(0, text, placed([token(one) for one in tokens], text, start))
    return piece["logprobs"]["text_offset"]


def test_offsets_go_on_where_the_piece_before_ended() -> None:
    assert offsets("cde", "cd", "e", start=2) == [2, 4]


def test_offsets_are_those_of_the_text_where_tokens_are_parts_of_characters() -> None:
    assert offsets("👋 hi 👋!", "\ufffd", "\ufffd", "\ufffd", " hi", " \ufffd", "\ufffd", "!") == [0, 0, 0, 1, 4, 4, 6]
    assert offsets("a\ufffdb", "a", "\ufffd", "b") == [0, 1, 2]  # a character of its own
    assert offsets("", "\ufffd", "\ufffd", start=7) == [7, 7]


def test_the_chosen_token_is_among_the_likely_ones_of_a_text() -> None:
    """As OpenAI's API has it: "there may be up to logprobs+1 elements"."""
    likely = [token("b", -0.25), token("a", -0.5)]
    texts = placed([token("c", -3.0, likely), token("a", -0.5, likely), token("a", -0.5)], "caa", 0)
    assert CompletionShape().choice(0, "caa", texts, "stop")["logprobs"]["top_logprobs"] == [
        {"b": -0.25, "a": -0.5, "c": -3.0},
        {"b": -0.25, "a": -0.5},
        {"a": -0.5},
    ]


def test_without_logprobs_there_are_none() -> None:
    for shape in (ChatShape(), CompletionShape()):
        assert shape.choice(0, "a", None, "stop")["logprobs"] is None
        assert shape.piece(0, "a", placed(None, "a", 0))["logprobs"] is None


def test_types_and_statuses_of_errors() -> None:
    expected = {
        "bad_params": (400, "invalid_request_error"),
        "unauthorized": (401, "authentication_error"),
        "forbidden": (403, "permission_error"),
        "model_not_found": (404, "invalid_request_error"),
        "conflict": (409, "invalid_request_error"),
        "too_large": (413, "invalid_request_error"),
        "queue_full": (429, "rate_limit_error"),
        "rate_limited": (429, "rate_limit_error"),
        "numerical_error": (500, "server_error"),
        "internal": (500, "server_error"),
        "expired": (503, "server_error"),
        "draining": (503, "server_error"),
        "engine_unavailable": (503, "server_error"),
    }
    for code, (status, kind) in expected.items():
        error = CallError(code, "words", param="p")
        assert (error.status, error.body()["error"]) == (
            status,
            {"message": "words", "type": kind, "param": "p", "code": code},
        )


def test_seconds_until_again_are_whole_and_at_least_one() -> None:
    for seconds, header in ((0.0, "1"), (0.2, "1"), (2.1, "3"), (30.0, "30")):
        assert error_response(CallError("rate_limited", "words", retry_after=seconds))["Retry-After"] == header
    assert "Retry-After" in error_response(CallError("queue_full", "words"))
    assert "Retry-After" not in error_response(CallError("bad_params", "words"))
    assert "X-Should-Retry" not in error_response(CallError("queue_full", "words"))


@pytest.mark.parametrize("code", ["queue_full", "rate_limited", "conflict"])
def test_what_would_be_refused_again_is_not_to_be_sent_again(code: str) -> None:
    """Clients go by the status, unless they are told."""
    response = error_response(as_call_error(RequestRefused(code, "never possible")))
    assert response["X-Should-Retry"] == "false"
    assert "Retry-After" not in response
    later = error_response(as_call_error(RequestRefused(code, "later", 3.0)))
    assert (later["Retry-After"], "X-Should-Retry" in later) == ("3", False)


def test_what_an_error_is_about() -> None:
    for sentence, param in (
        ("temperature is 1000; it must be less", "temperature"),
        ("logit_bias holds token id 9", "logit_bias"),
        ("response_format: Invalid type: nope", "response_format"),
        ("a stop string has 0 characters", "stop"),
        ("the prompt is empty", None),
    ):
        assert param_of(sentence) == param


def test_what_nobody_thought_of_tells_nothing() -> None:
    error = as_call_error(ZeroDivisionError("/etc/secret at 10.0.0.1"))
    assert (error.code, error.status) == ("internal", 500)
    assert "secret" not in str(error)
    assert CallError("a_new_word_of_the_engine", "words").code == "internal"
