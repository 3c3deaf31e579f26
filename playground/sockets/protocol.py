"""The messages of the sockets, as browsers and programs see them: one union a direction.

Knows: fields, bounds and their words for people. Must not know: Django, the gateway, who is asking.
Unknown fields are refused, as unknown parameters are: what is ignored in silence is a wrong answer later.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from inference.config import ParameterError, SamplingParams

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 256 * 1024
MAX_MESSAGES = 1000
MAX_REF_LENGTH = 128
MAX_T_LENGTH = 64

Id = Annotated[str, Field(max_length=64)]
Ref = Annotated[str, Field(max_length=MAX_REF_LENGTH)]


class ProtocolError(ValueError):
    """A frame that can't be used. `code` is one of the contract's; `ref` and `request_id` where the frame had them;
    retry_after: seconds, where it can be sent again."""

    def __init__(
        self,
        code: str,
        message: str,
        ref: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after
        self.ref = ref
        self.request_id = request_id


# What clients send.


class ClientModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


class ChatMessage(ClientModel):
    role: Literal["system", "user", "assistant"]
    content: str


class Generate(ClientModel):
    """Asks for an answer, or for `params.n` of them: then each is a request of its own, with its own `accepted` (all
    have this message's ref), deltas and finish. All are accepted or none. Their seeds derive from one, so that the
    family can be had again; the first has `params.seed` itself. A turn of a conversation has one answer, so n is 1.
    `params.priority` above 0 is for staff.
    """

    type: Literal["generate"]
    ref: Ref | None = None
    """the client's own label: a label, and nothing else"""
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    """a conversation, to which the model's chat template is applied; this or `prompt`"""
    prompt: str | None = None
    """a text to go on with, as it is; this or `messages`"""
    params: dict[str, Any] = {}
    conversation: Id | None = None
    """of the caller's conversations, the one that gets this turn"""

    @model_validator(mode="after")
    def _one_of_two(self) -> Generate:
        if (self.messages is None) == (self.prompt is None):
            raise ValueError("generate needs one of messages and prompt, and not both")
        return self

    @field_validator("params", mode="before")
    @classmethod
    def _none_is_empty(cls, value: Any) -> Any:
        return {} if value is None else value

    def sampling_params(self) -> SamplingParams:
        """Raises ProtocolError with code bad_params."""
        try:
            return SamplingParams.from_mapping(self.params)
        except ParameterError as error:
            raise ProtocolError("bad_params", str(error), ref=self.ref) from None

    def message_dicts(self) -> list[dict[str, str]] | None:
        return None if self.messages is None else [{"role": m.role, "content": m.content} for m in self.messages]


class Cancel(ClientModel):
    """Takes effect at the next iteration; the request's `finished` says `cancelled` and has what it used."""

    type: Literal["cancel"]
    request_id: Id


class Resume(ClientModel):
    """Sends all of a request's deltas after that one, goes on live, and ends with its `finished`, also of a request
    that is over. When a socket closes, its requests are given up after a grace: a second, or 30 s in a conversation,
    unless the service has other settings."""

    type: Literal["resume"]
    request_id: Id
    after_seq: Annotated[int, Field(ge=0, le=1 << 53)] = 0
    """of the last delta that the client has; 0: from the beginning"""


class Ack(ClientModel):
    """The client has read the frame of that request and seq, and so all that this socket sent before it. Acknowledging
    is optional; from the first `ack` on, the server sends at most 256 KiB of answers beyond what was acknowledged. A
    socket on which nothing can be sent for 30 seconds is closed with 1013; its requests can be resumed."""

    type: Literal["ack"]
    request_id: Id
    seq: Annotated[int, Field(ge=0, le=1 << 53)]


class Ping(ClientModel):
    """For clients that can't see WebSocket's own pings."""

    type: Literal["ping"]
    t: int | float | Annotated[str, Field(max_length=MAX_T_LENGTH)] | None = None
    """comes back in `pong`"""

    @field_validator("t", mode="before")
    @classmethod
    def _is_small(cls, value: Any) -> Any:
        """In words: of a union each kind would say what it is not."""
        if isinstance(value, str) and len(value) > MAX_T_LENGTH:
            raise ValueError(f"t of ping has {len(value)} characters; at most {MAX_T_LENGTH} are sent back")
        if isinstance(value, (bool, list, dict)):
            raise ValueError(f"t of ping must be a number or a text of at most {MAX_T_LENGTH} characters")
        return value


ClientMessage = Annotated[Generate | Cancel | Resume | Ack | Ping, Field(discriminator="type")]


# What the server sends.


class ServerModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    def frame(self) -> str:
        """The message as a text frame; fields that are None are left out."""
        return self.model_dump_json(exclude_none=True)


class Limits(ServerModel):
    message_bytes: int = MAX_FRAME_BYTES
    """of a frame, at most"""
    messages: int = MAX_MESSAGES
    """of a conversation in one `generate`, at most"""
    max_model_len: int | None = None
    """tokens of prompt and answer together"""


class Hello(ServerModel):
    """Comes once, before anything else."""

    type: Literal["hello"] = "hello"
    protocol: int = PROTOCOL_VERSION
    model: str
    limits: Limits


class Accepted(ServerModel):
    """From here on the request is kept whatever dies, and has exactly one `finished`."""

    type: Literal["accepted"] = "accepted"
    ref: str | None = None
    """that of the `generate` it answers"""
    request_id: str
    """the server's name for it, in all that follows"""
    position: int
    """how many were before it when it came"""


class Queued(ServerModel):
    """While it waits, when one of these changes. position: how many are before it; beyond the first hundred, in whole
    hundreds. eta_ms: until it begins, null where nothing can be said."""

    type: Literal["queued"] = "queued"
    request_id: str
    position: int
    reason: str
    eta_ms: float | None

    def frame(self) -> str:
        """With all fields: what is not known is said."""
        return self.model_dump_json()


class LikelyToken(ServerModel):
    """`token`: the text of this id alone; what is not whole characters has U+FFFD in it. logprob: natural logarithm."""

    token_id: int
    token: str
    logprob: float


class TokenLogprobs(LikelyToken):
    """A token of the answer; `top`: the most likely ones in its place, as many as `params.logprobs` asked for."""

    top: list[LikelyToken]


class DeltaFrame(ServerModel):
    """The next piece of an answer. `seq` counts a request's deltas from 1 without gaps. To a reader that is slow
    several deltas come as one frame: then `first_seq` is the number of the first and `seq` that of the last of them,
    `text` and `logprobs` are theirs joined, `tokens` their sum, and `iteration` is the last one's. Without `first_seq`
    a frame is one delta. So each frame goes on where the one before ended: `first_seq`, or else `seq`, is one more than
    the `seq` before."""

    type: Literal["delta"] = "delta"
    request_id: str
    first_seq: int | None = None
    seq: int
    text: str
    tokens: int
    """how many tokens brought this text"""
    iteration: int
    """of the engine, in which the text came"""
    logprobs: list[TokenLogprobs] | None = None


class Usage(ServerModel):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """of the prompt: those whose KV blocks were there already"""


class Finished(ServerModel):
    """`logprobs`: of tokens that came after the last delta, without text of their own."""

    type: Literal["finished"] = "finished"
    request_id: str
    seq: int
    finish_reason: str
    """`stop`, `length`, `cancelled`, `error` (an `error` frame came before) or `expired` (a time limit)"""
    usage: Usage
    receipt: dict[str, Any]
    """where the time went, in ms: queue, prefill, decode, batchmates, preempted, stalled and deliver, which add up to
    total; `details` says more of some"""
    logprobs: list[TokenLogprobs] | None = None


class ErrorFrame(ServerModel):
    """`ref` and `request_id`: of the message or the request that it is about, where it had them."""

    type: Literal["error"] = "error"
    code: str
    """a word that stays the same over versions, such as `bad_params`"""
    message: str
    """for people: what to change, with true numbers"""
    ref: str | None = None
    request_id: str | None = None
    retry_after: float | None = None
    """seconds until the same may be sent again; `queue_full` and `rate_limited` without it: waiting helps nothing"""


class Pong(ServerModel):
    """Answers `ping` with its `t`."""

    type: Literal["pong"] = "pong"
    t: int | float | str | None = None


class Draining(ServerModel):
    """The server is about to stop, and closes this socket with 1012: connect again and resume."""

    type: Literal["draining"] = "draining"


ServerMessage = Annotated[
    Hello | Accepted | Queued | DeltaFrame | Finished | ErrorFrame | Pong | Draining, Field(discriminator="type")
]
