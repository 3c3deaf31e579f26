"""From a body to what is asked: every field means something, is let through for a reason, or is refused in words."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from openai.resources.chat.completions import Completions as ChatCompletions
from openai.resources.completions import Completions
from pydantic import ValidationError

from inference.config import ParameterError, SamplingParams
from playground.http.openai.errors import CallError
from playground.http.openai.fields import IGNORED, REFUSED
from playground.http.openai.requests import ChatCompletionRequest, CompletionRequest, Sampling, invalid

HELLO = [{"role": "user", "content": "hello"}]


def chat(**fields: Any) -> ChatCompletionRequest:
    try:
        return ChatCompletionRequest.model_validate({"messages": HELLO, **fields})
    except ValidationError as error:
        raise invalid(error) from None


def completion(**fields: Any) -> CompletionRequest:
    try:
        return CompletionRequest.model_validate({"prompt": "hello", **fields})
    except ValidationError as error:
        raise invalid(error) from None


def test_defaults() -> None:
    assert chat().sampling_params() == SamplingParams()
    assert completion().sampling_params() == SamplingParams(max_tokens=16)


def test_null_is_not_given() -> None:
    names = set(ChatCompletionRequest.model_fields) - {"messages"}
    assert chat(**dict.fromkeys((*names, *REFUSED))).sampling_params() == SamplingParams()
    names = set(CompletionRequest.model_fields) - {"prompt"}
    assert completion(**dict.fromkeys((*names, *REFUSED))).sampling_params() == SamplingParams(max_tokens=16)


@pytest.mark.parametrize(
    ("fields", "params"),
    [
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 5, "max_tokens": 5}, {"max_tokens": 5}),
        ({"temperature": 0, "top_p": 0.5, "seed": 3, "n": 2}, {"temperature": 0, "top_p": 0.5, "seed": 3, "n": 2}),
        ({"stop": "x"}, {"stop": ("x",)}),
        ({"stop": ["x", "y"]}, {"stop": ("x", "y")}),
        ({"logit_bias": {"7": -100, "8": 1.5}}, {"logit_bias": {7: -100, 8: 1.5}}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 5}, {"logprobs": 5}),
        ({"logprobs": False}, {}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1}, {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1}),
        ({"min_tokens": 2, "ignore_eos": True, "stop_token_ids": [3]},
         {"min_tokens": 2, "ignore_eos": True, "stop_token_ids": (3,)}),
        ({"presence_penalty": 1, "frequency_penalty": -1}, {"presence_penalty": 1, "frequency_penalty": -1}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"response_format": {"type": "json_object"}}),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}},
         {"response_format": {"type": "json_schema", "schema": {"type": "object"}}}),
        ({"priority": -1}, {"priority": -1}),
    ],
)  # fmt: skip
def test_parameters(fields: dict[str, Any], params: dict[str, Any]) -> None:
    assert chat(**fields).sampling_params() == SamplingParams.from_mapping(params)


def test_logprobs_of_completions_are_a_number() -> None:
    assert completion(logprobs=3).sampling_params().logprobs == 3
    with pytest.raises(CallError, match="logprobs"):
        completion(logprobs=True)
    with pytest.raises(CallError, match="logprobs"):
        chat(logprobs=3)


@pytest.mark.parametrize("name", IGNORED)
@pytest.mark.parametrize("value", ["a", 1, True, {"a": ["b"]}])
def test_what_changes_nothing_is_let_through(name: str, value: Any) -> None:
    assert chat(**{name: value}).sampling_params() == SamplingParams()


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_refused_in_words(name: str) -> None:
    for value in ("required", True, [{"a": 1}], {"name": "f"}):
        with pytest.raises(CallError, match=f"leave {name} out") as caught:
            chat(**{name: value})
        assert (caught.value.code, caught.value.param, caught.value.status) == ("bad_params", name, 400)
    for value in (None, [], {}, False, ""):
        chat(**{name: value})
        completion(**{name: value})


def test_what_is_the_same_as_nothing_is_no_offence() -> None:
    chat(tool_choice="none", tools=[], modalities=["text"], function_call="auto", echo=False, suffix="")
    chat(reasoning_effort="none", verbosity="medium")
    with pytest.raises(CallError, match="modalities"):
        chat(modalities=["text", "audio"])


@pytest.mark.parametrize(
    ("create", "body"), [(Completions.create, CompletionRequest), (ChatCompletions.create, ChatCompletionRequest)]
)
def test_every_parameter_of_openais_client_is_known(create: Any, body: type[Sampling]) -> None:
    of_the_client = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
    asked = set(inspect.signature(create).parameters) - of_the_client
    assert asked - set(body.model_fields) - set(REFUSED) == set()


@pytest.mark.parametrize("best_of", [1, 3])
def test_best_of(best_of: int) -> None:
    assert len(completion(best_of=best_of, n=best_of).asked()) == 1
    with pytest.raises(CallError, match=f"best_of is {best_of} and n is 2"):
        completion(best_of=best_of, n=2).asked()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"frobnicate": 1}, "there is no field frobnicate"),
        ({"messages": []}, "messages: list should have at least 1 item"),
        ({"messages": HELLO * 1001}, "at most 1000 items"),
        ({"messages": "hello"}, "messages: input should be a valid list"),
        ({"messages": [{"role": "user"}]}, "the field messages.0.content is needed"),
        ({"messages": [{"content": "x"}]}, "the field messages.0.role is needed"),
        ({"messages": [{"role": "pope", "content": "x"}]}, "messages.0.role: input should be 'system'"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "no message has the role tool"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "a part of type image_url"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "a text part without text"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "part of type None"),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"id": 1}]}]}, "messages.0.tool_calls"),
        ({"stream": "yes"}, "stream: input should be a valid boolean"),
        ({"temperature": "0.7"}, "temperature: input should be a valid number"),
        ({"temperature": True}, "temperature: input should be a valid number"),
        ({"max_tokens": 1.5}, "max_tokens: input should be a valid integer"),
        ({"stop": 5}, "stop: it must be a string or a list of strings"),
        ({"stop": [5]}, "stop: it must be a string or a list of strings"),
        ({"stream_options": {"include": True}}, "no field stream_options.include"),
        ({"logit_bias": {"7": "x"}}, "logit_bias.7"),
    ],
)  # fmt: skip
def test_bad_fields(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(CallError) as caught:
        chat(**fields)
    assert words in str(caught.value)
    assert caught.value.code == "bad_message"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens is 5 and max_completion_tokens 6"),
        ({"top_logprobs": 3}, "top_logprobs needs logprobs"),
    ],
)
def test_fields_that_do_not_go_together(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(CallError, match=words):
        chat(**fields).sampling_params()


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": -1},
        {"top_p": 2.0},
        {"seed": -1},
        {"n": 17},
        {"logit_bias": {"-1": 1}},
        {"logit_bias": {"x": 1}},
        {"logprobs": True, "top_logprobs": 21},
        {"max_tokens": 0},
        {"response_format": {"type": "xml"}},
        {"stop": ["x"] * 17},
        {"stop_token_ids": [-1]},
        {"top_k": -2},
    ],
)
def test_parameters_out_of_range(fields: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        chat(**fields).sampling_params()


def test_messages_as_the_engine_has_them() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": parts, "name": "ann"},
        {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None, "audio": None, "annotations": []},
    ]
    [asked] = chat(messages=messages).asked()
    assert [tuple(message.values()) for message in asked["messages"]] == [
        ("system", "be brief"),
        ("user", "a\nb"),
        ("assistant", "c"),
    ]


@pytest.mark.parametrize(
    ("prompt", "asked"),
    [
        ("a", [{"prompt": "a"}]),
        ("", [{"prompt": ""}]),
        (["a", "b"], [{"prompt": "a"}, {"prompt": "b"}]),
        ([1, 2], [{"prompt_ids": [1, 2]}]),
        ([[1, 2], [3]], [{"prompt_ids": [1, 2]}, {"prompt_ids": [3]}]),
    ],
)
def test_prompts(prompt: Any, asked: list[dict[str, Any]]) -> None:
    assert completion(prompt=prompt).asked() == asked


@pytest.mark.parametrize(
    "prompt", [None, [], [[]], 5, [1, "a"], ["a", 1], ["a", [1]], [[1], "a"], [True], [-1], [1 << 31], [1.5], {"a": 1}]
)
def test_bad_prompts(prompt: Any) -> None:
    with pytest.raises(CallError, match="prompt"):
        completion(prompt=prompt)


def test_a_prompt_is_needed() -> None:
    with pytest.raises(ValidationError) as caught:
        CompletionRequest.model_validate({})
    assert str(invalid(caught.value)) == "the field prompt is needed"
