"""The parts of answers, as OpenAI's clients read them."""

from __future__ import annotations

import math
from typing import Any

from playground.http.openai.errors import CallError, as_call_error, error_response
from playground.http.openai.shapes import ChatShape, CompletionShape


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
    text = CompletionShape().choice(0, "a", tokens, "stop")["logprobs"]
    assert (text["token_logprobs"], text["top_logprobs"]) == ([-9999.0], [{"b": -9999.0, "c": -3.0}])


def test_offsets_go_on_where_the_piece_before_ended() -> None:
    piece = CompletionShape().piece(0, "cde", [token("cd"), token("e")], 2)
    assert piece["logprobs"]["text_offset"] == [2, 4]


def test_without_logprobs_there_are_none() -> None:
    for shape in (ChatShape(), CompletionShape()):
        assert shape.choice(0, "a", None, "stop")["logprobs"] is None
        assert shape.piece(0, "a", None, 0)["logprobs"] is None


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


def test_what_nobody_thought_of_tells_nothing() -> None:
    error = as_call_error(ZeroDivisionError("/etc/secret at 10.0.0.1"))
    assert (error.code, error.status) == ("internal", 500)
    assert "secret" not in str(error)
    assert CallError("a_new_word_of_the_engine", "words").code == "internal"
