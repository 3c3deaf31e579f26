"""OpenAI's own client against a running service."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import openai
import pytest
from support.api_keys import make_key
from support.server import Server

COUNT = "one two three four five six seven"
MODEL = "script"


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve("SCRIPT").owned_by == "batchscope"
    longest = client.models.retrieve(MODEL).max_model_len  # the model's own: nothing else is set
    with pytest.raises(openai.BadRequestError, match=f"the model takes {longest}"):
        client.completions.create(model=MODEL, prompt="a", max_tokens=longest)
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-9")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_an_answer_in_one_piece(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=user("count"))
    [choice] = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", COUNT, "stop")
    assert answer.id == f"chatcmpl-{answer._request_id}"
    assert (answer.object, answer.model) == ("chat.completion", MODEL)
    assert abs(answer.created - time.time()) < 60
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0
    assert choice.logprobs is None
    timing = answer.timing
    parts = ("queue", "prefill", "decode", "batchmates", "preempted", "stalled", "deliver")
    assert sum(timing[part] for part in parts) == pytest.approx(timing["total"], rel=0.01)


def test_a_conversation_goes_on_with_the_message_as_it_came(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(model=MODEL, messages=user("hello")).choices[0].message
    system = {"role": "developer", "content": "Be brief."}
    parts = {"role": "user", "content": [{"type": "text", "text": "now"}, {"type": "text", "text": "count"}]}
    answer = client.chat.completions.create(model=MODEL, messages=[system, *user("hello"), first, parts])
    assert answer.choices[0].message.content == COUNT


def test_a_stream(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=user("count"))
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=user("count"), stream=True, stream_options={"include_usage": True}
        )
    )
    first, *middle, end, counts = chunks
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert "".join(chunk.choices[0].delta.content for chunk in middle) == COUNT
    assert all(chunk.choices[0].finish_reason is None and chunk.usage is None for chunk in (first, *middle))
    assert (end.choices[0].finish_reason, end.choices[0].delta.content) == ("stop", None)
    assert counts.choices == []
    assert counts.usage.completion_tokens == whole.usage.completion_tokens
    assert counts.usage.prompt_tokens == whole.usage.prompt_tokens
    assert counts.timing["total"] > 0
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_without_counts_ends_with_the_timing(client: openai.OpenAI) -> None:
    *_, end = client.chat.completions.create(model=MODEL, messages=user("count"), stream=True)
    assert end.choices[0].finish_reason == "stop"
    assert end.timing["total"] > 0


def test_the_end_of_a_stream_is_said(http: httpx.Client) -> None:
    body = {"messages": user("count"), "stream": True}
    with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.read().endswith(b"\n\ndata: [DONE]\n\n")


def test_characters_of_many_bytes(client: openai.OpenAI) -> None:
    text = "👋 삼겹살 ďábel"
    assert (
        client.chat.completions.create(model=MODEL, messages=user("in characters")).choices[0].message.content == text
    )
    stream = client.chat.completions.create(
        model=MODEL, messages=user("in characters"), stream=True, logprobs=True, top_logprobs=2
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == text


def test_several_answers(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=user("count"), n=3, seed=1)
    one = client.chat.completions.create(model=MODEL, messages=user("count"), seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {choice.message.content for choice in answer.choices} == {COUNT}
    assert answer.usage.prompt_tokens == one.usage.prompt_tokens
    assert answer.usage.completion_tokens == 3 * one.usage.completion_tokens
    stream = list(client.chat.completions.create(model=MODEL, messages=user("count"), n=3, stream=True))
    texts = {0: "", 1: "", 2: ""}
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert set(texts.values()) == {COUNT}
    assert sum(chunk.choices[0].finish_reason == "stop" for chunk in stream) == 3


@pytest.mark.parametrize("stop", ["three", ["xyz", "three"]])
def test_stop(client: openai.OpenAI, stop: Any) -> None:
    choice = client.chat.completions.create(model=MODEL, messages=user("count"), stop=stop).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("one two ", "stop")


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_length(client: openai.OpenAI, name: str) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=user("count"), **{name: 2})
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 2)


def test_logprobs_of_a_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=user("count"), logprobs=True, top_logprobs=2)
    tokens = answer.choices[0].logprobs.content
    assert "".join(token.token for token in tokens) == COUNT
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == COUNT
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in tokens)
    stream = client.chat.completions.create(model=MODEL, messages=user("count"), logprobs=True, stream=True)
    streamed = [token for chunk in stream if chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.content]
    assert [(token.token, token.logprob) for token in streamed] == [(token.token, token.logprob) for token in tokens]
    assert all(token.top_logprobs == [] for token in streamed)


def test_logprobs_of_a_completion(client: openai.OpenAI) -> None:
    choice = client.completions.create(model=MODEL, prompt="count", logprobs=1, max_tokens=50).choices[0]
    assert "".join(choice.logprobs.tokens) == choice.text == COUNT
    for at, token in zip(choice.logprobs.text_offset, choice.logprobs.tokens, strict=True):
        assert choice.text[at:].startswith(token)
    assert len(choice.logprobs.token_logprobs) == len(choice.logprobs.top_logprobs) == len(choice.logprobs.tokens)
    stream = client.completions.create(model=MODEL, prompt="count", logprobs=1, max_tokens=50, stream=True)
    offsets = [at for chunk in stream if chunk.choices[0].logprobs for at in chunk.choices[0].logprobs.text_offset]
    assert offsets == choice.logprobs.text_offset


def test_offsets_after_characters_of_several_tokens(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "prompt": "in characters", "logprobs": 0, "max_tokens": 50}
    choice = client.completions.create(**asked).choices[0]
    begin = zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True)
    whole = [(token, at) for token, at in begin if "\ufffd" not in token]
    assert whole
    assert all(choice.text.index(token) == at for token, at in whole)
    stream = client.completions.create(**asked, stream=True)
    offsets = [at for chunk in stream if chunk.choices[0].logprobs for at in chunk.choices[0].logprobs.text_offset]
    assert offsets == choice.logprobs.text_offset


def test_prompts_of_every_kind(client: openai.OpenAI) -> None:
    for prompt, answers in (("count", 1), (["count", "hello"], 2), ([1, 2, 3], 1), ([[1, 2], [3, 4], [5]], 3)):
        answer = client.completions.create(model=MODEL, prompt=prompt, n=2, max_tokens=9)
        assert answer.id.startswith("cmpl-")
        assert [choice.index for choice in answer.choices] == list(range(2 * answers))
    two = client.completions.create(model=MODEL, prompt=["count", "hello"], max_tokens=50)
    assert [choice.text for choice in two.choices] == [COUNT, "Nothing to say."]
    assert client.completions.create(model=MODEL, prompt=[1, 2, 3]).usage.prompt_tokens == 3


def test_completions_are_short_unless_asked(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="tell me a long story")
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (16, "length")


def test_a_completion_streams(client: openai.OpenAI) -> None:
    stream = client.completions.create(model=MODEL, prompt=["count", "hello"], max_tokens=50, stream=True)
    texts, reasons = {0: "", 1: ""}, []
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
        reasons.append(chunk.choices[0].finish_reason)
    assert texts == {0: COUNT, 1: "Nothing to say."}
    assert reasons.count("stop") == 2


def test_formats_and_extensions(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    for response_format in ({"type": "text"}, {"type": "json_object"}):
        client.chat.completions.create(
            model=MODEL, messages=user("count"), response_format=response_format, max_tokens=5
        )
    answer = client.chat.completions.create(
        model=MODEL,
        messages=user("count"),
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}},
        max_tokens=3,
    )
    assert answer.choices[0].message.content.startswith("{")
    extra = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "min_tokens": 12, "priority": -1}
    answer = client.chat.completions.create(
        model=MODEL,
        messages=user("count"),
        extra_body=extra,
        max_tokens=12,
        logit_bias={"7": -100},
        user="someone",
        metadata={"a": "b"},
        store=False,
    )
    assert answer.usage.completion_tokens == 12


def test_errors_have_their_classes(client: openai.OpenAI, server: Server, make_client: Any) -> None:
    def chat(of: openai.OpenAI = client, **fields: Any) -> Any:
        return of.chat.completions.create(**{"model": MODEL, "messages": user("count"), **fields})

    with pytest.raises(openai.BadRequestError, match="temperature is 1000") as caught:
        chat(temperature=1000)
    assert (caught.value.param, caught.value.code, caught.value.type) == (
        "temperature",
        "bad_params",
        "invalid_request_error",
    )
    with pytest.raises(openai.BadRequestError, match="no tools") as caught:
        chat(tools=[{"type": "function", "function": {"name": "f"}}])
    assert caught.value.param == "tools"
    with pytest.raises(openai.NotFoundError):
        chat(model="gpt-9")
    with pytest.raises(openai.AuthenticationError):
        chat(make_client("bs-wrong"))
    with pytest.raises(openai.PermissionDeniedError, match="scope generate"):
        chat(make_client(make_key(server, "metrics")))
    with pytest.raises(openai.BadRequestError, match="together") as caught:
        client.completions.create(model=MODEL, prompt="a " * 1000, max_tokens=1 << 20)
    assert caught.value.code == "prompt_too_long"
    with pytest.raises(openai.BadRequestError, match="Invalid type") as caught:
        chat(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "nope"}}})
    assert caught.value.param == "response_format"


@pytest.mark.parametrize("stream", [True, False])
def test_a_call_that_fails_after_it_was_accepted_has_its_id(
    client: openai.OpenAI, server: Server, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="a", max_tokens=1 << 20, stream=stream)
    assert f"request_id={caught.value.request_id} " in server.output


def test_a_stream_that_can_never_begin_has_a_status(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=MODEL, prompt="a " * 1000, max_tokens=1 << 20, stream=True)


def test_a_client_who_is_told_to_wait_comes_again(make_client: Any, anns_key: str) -> None:
    """Ann may have three requests at once."""
    ann, patient = make_client(anns_key), make_client(anns_key, max_retries=8)
    answers: list[str] = []

    def come_again() -> None:
        answers.append(patient.completions.create(model=MODEL, prompt="count").choices[0].text)

    with ann.completions.create(model=MODEL, prompt="tell me a long story", n=3, max_tokens=200, stream=True) as stream:
        next(iter(stream))
        with pytest.raises(openai.RateLimitError, match="3 of your requests wait or run") as caught:
            ann.completions.create(model=MODEL, prompt="count")
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert caught.value.code == "queue_full"
        waiting = threading.Thread(target=come_again)
        waiting.start()
        for _ in stream:
            pass
    waiting.join(60)
    assert answers == [COUNT]
