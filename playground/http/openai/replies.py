"""What the API answers, as its document describes it. The answers themselves are made in shapes.py and answers.py.

Must not know: Django, how an answer comes about.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field


class ErrorDetail(BaseModel):
    message: str = Field(description="what to change, for people")
    type: str
    param: str | None = Field(description="the field that it is about")
    code: str = Field(description="a stable word, for programs")


class ErrorReply(BaseModel):
    error: ErrorDetail


ERRORS: dict[int, Any] = dict.fromkeys((400, 401, 403, 404, 405, 409, 413, 429, 500, 503), ErrorReply)


class PromptTokensDetails(BaseModel):
    cached_tokens: int = Field(description="of the prompt, whose KV blocks were there already")


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Timing(BaseModel):
    """The latency receipt: parts in ms, which add up to `total`. `details` says more of some of them."""

    queue: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    batchmates: float = Field(0.0, description="its tokens waited for other requests' prefill")
    preempted: float = 0.0
    stalled: float = Field(0.0, description="an engine was restarted")
    deliver: float = 0.0
    total: float = 0.0
    details: dict[str, Any] = {}


class LikelyToken(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(LikelyToken):
    top_logprobs: list[LikelyToken]


class ChatLogprobs(BaseModel):
    content: list[TokenLogprob]
    refusal: None = None


class AnswerMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    refusal: None = None


class Choice(BaseModel):
    index: int
    finish_reason: str = Field(description="`stop`, `length`, or `cancelled`: the text is what there was until then")
    timing: Timing | None = Field(None, description="its own, where a call has several choices")


class ChatChoice(Choice):
    message: AnswerMessage
    logprobs: ChatLogprobs | None


class TextLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(Choice):
    text: str
    logprobs: TextLogprobs | None


class Reply(BaseModel):
    id: str
    created: int = Field(description="Unix seconds")
    model: str
    system_fingerprint: str
    usage: Usage
    timing: Timing = Field(description="an extension: of the request that took longest")


class ChatCompletion(Reply):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class Completion(Reply):
    object: Literal["text_completion"]
    choices: list[TextChoice]


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None = Field(description="an extension: prompt and answer together, in tokens")


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[Model]
