"""What programs send: the bodies of chat completions and completions, as OpenAI's API has them.

Knows: fields, and how they come to be what the engine is asked. Must not know: Django, who asks, what is done with it.
What would change the answer and is not supported is refused; what changes nothing is let through (see fields.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from inference.config import SamplingParams
from playground.http.openai.errors import CallError
from playground.http.openai.fields import IGNORED, REFUSED, Content, Prompts, Stop, is_used
from playground.sockets.protocol import MAX_MESSAGES

MAX_CHOICES = 128  # prompts of a call times n
COMPLETION_TOKENS = 16  # max_tokens of /v1/completions where it is not given, as OpenAI's API has it
_OF_PARAMS = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "ignore_eos", "min_tokens", "n"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "priority", "response_format"),
)


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Message(Body):
    """Parts of a content are joined by line breaks. `developer` is the same as `system`."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    name: Any = Field(None, description="ignored")

    @model_validator(mode="before")
    @classmethod
    def _as_answered(cls, value: Any) -> Any:
        """A message as an answer had it, with its empty fields, can be sent back."""
        if not isinstance(value, dict):
            return value
        if value.get("role") in ("tool", "function"):
            raise ValueError(f"there are no tools here, so no message has the role {value['role']}")
        empty = ("refusal", "annotations", "audio", "tool_calls", "function_call", "reasoning_content")
        return {k: v for k, v in value.items() if k not in empty or is_used(k, v)}

    def to_dict(self) -> dict[str, str]:
        return {"role": "system" if self.role == "developer" else self.role, "content": self.content}


class StreamOptions(Body):
    include_usage: bool | None = Field(None, description="a last chunk with `usage`, before `[DONE]`")
    include_obfuscation: Any = Field(None, description="ignored: chunks are never padded")
    continuous_usage_stats: Any = Field(None, description="ignored: `usage` comes once, in the last chunk")


class Sampling(Body, ABC):
    """What both kinds of call have in common."""

    model: str | None = Field(None, description="the one that `/v1/models` names, in any case; may be left out")
    stream: bool | None = Field(None, description="send the answer as server-sent events, ended by `[DONE]`")
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, description="most tokens of an answer")
    temperature: float | None = Field(None, description="0 to 100; 0 is greedy; 1 where it is not given")
    top_p: float | None = Field(None, description="0 to 1")
    n: int | None = Field(None, description="answers to each prompt, 1 to 16")
    stop: Stop | None = Field(None, description="up to 16 strings that end an answer")
    seed: int | None = Field(None, description="from 0; with it, an answer can be had again")
    presence_penalty: float | None = Field(None, description="-2 to 2")
    frequency_penalty: float | None = Field(None, description="-2 to 2")
    logit_bias: dict[str, float] | None = Field(None, description="from token ids to what is added to their logits")
    response_format: dict[str, Any] | None = Field(
        None, description="`text`, `json_object`, `json_schema`; and `regex`, with a field `regex`"
    )
    top_k: int | None = Field(None, description="an extension; 0 or -1: off")
    min_p: float | None = Field(None, description="an extension; 0 to 1")
    repetition_penalty: float | None = Field(None, description="an extension; 1: off")
    min_tokens: int | None = Field(None, description="an extension; fewest tokens of an answer")
    stop_token_ids: list[int] | None = Field(None, description="an extension; tokens that end an answer")
    ignore_eos: bool | None = Field(None, description="an extension; go on after the end-of-text token")
    priority: int | None = Field(None, description="an extension; -2 to 2, above 0 for staff")
    user: Any = Field(None, description=IGNORED["user"])
    metadata: Any = Field(None, description=IGNORED["metadata"])
    store: Any = Field(None, description=IGNORED["store"])
    service_tier: Any = Field(None, description=IGNORED["service_tier"])
    safety_identifier: Any = Field(None, description=IGNORED["safety_identifier"])
    prompt_cache_key: Any = Field(None, description=IGNORED["prompt_cache_key"])
    prompt_cache_options: Any = Field(None, description=IGNORED["prompt_cache_options"])
    prompt_cache_retention: Any = Field(None, description=IGNORED["prompt_cache_retention"])
    parallel_tool_calls: Any = Field(None, description=IGNORED["parallel_tool_calls"])

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, value: Any) -> Any:
        """What is not supported, in words; not used, it does no harm."""
        if not isinstance(value, dict):
            return value
        for name in value.keys() & REFUSED.keys():
            if is_used(name, value[name]):
                raise CallError("bad_params", REFUSED[name].format(name=name), param=name)
        return {name: given for name, given in value.items() if name not in REFUSED}

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    @abstractmethod
    def with_logprobs(self) -> int | None:
        """How many of the likeliest tokens are told beside each one; None: nothing is. Raises CallError."""

    @property
    @abstractmethod
    def most_tokens(self) -> int | None:
        """Of an answer. Raises CallError."""

    @abstractmethod
    def asked(self) -> list[dict[str, Any]]:
        """Of each prompt, the field of a request's row that holds it. Raises CallError."""

    def sampling_params(self) -> SamplingParams:
        """Raises ParameterError, CallError."""
        given: dict[str, Any] = {name: getattr(self, name) for name in _OF_PARAMS}
        given |= {"top_k": 0 if self.top_k == -1 else self.top_k, "max_tokens": self.most_tokens}
        given["logprobs"] = self.with_logprobs
        return SamplingParams.from_mapping({name: value for name, value in given.items() if value is not None})


class ChatCompletionRequest(Sampling):
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: int | None = Field(None, description="the same as `max_tokens`; 256 where neither is given")
    logprobs: bool | None = Field(None, description="tell the probability of each token of the answer")
    top_logprobs: int | None = Field(None, description="with `logprobs`: and of the likeliest ones, up to 20")

    @property
    def with_logprobs(self) -> int | None:
        if self.top_logprobs is not None and not self.logprobs:
            raise CallError("bad_params", "top_logprobs needs logprobs, true", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def most_tokens(self) -> int | None:
        both = {value for value in (self.max_tokens, self.max_completion_tokens) if value is not None}
        if len(both) > 1:
            words = f"max_tokens is {self.max_tokens} and max_completion_tokens {self.max_completion_tokens}; give one"
            raise CallError("bad_params", words, param="max_completion_tokens")
        return both.pop() if both else None

    def asked(self) -> list[dict[str, Any]]:
        return [{"messages": [message.to_dict() for message in self.messages]}]


class CompletionRequest(Sampling):
    prompt: Prompts
    logprobs: int | None = Field(None, description="tell the probability of each token, and of so many likely ones")
    best_of: int | None = Field(None, description="only as many as `n`: all answers are sent")

    @property
    def with_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def most_tokens(self) -> int | None:
        return COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens

    def asked(self) -> list[dict[str, Any]]:
        if self.best_of is not None and self.best_of != (self.n or 1):
            words = f"best_of is {self.best_of} and n is {self.n or 1}; all answers are sent, so they must be the same"
            raise CallError("bad_params", words, param="best_of")
        return [{"prompt": one} if isinstance(one, str) else {"prompt_ids": one} for one in self.prompt]


def invalid(error: ValidationError) -> CallError:
    """The first thing that is wrong with a body."""
    first = error.errors(include_url=False, include_input=False)[0]
    param = ".".join(str(part)[:40] for part in first["loc"]) or None
    if cause := first.get("ctx", {}).get("error"):
        return CallError("bad_message", f"{param}: {cause}" if param else str(cause), param=param)
    if first["type"] == "extra_forbidden":
        return CallError("bad_message", f"there is no field {param}; see /docs/api/ for those there are", param=param)
    if first["type"] == "missing":
        return CallError("bad_message", f"the field {param} is needed", param=param)
    message = first["msg"]
    return CallError("bad_message", f"{param or 'the body'}: {message[0].lower()}{message[1:]}", param=param)
