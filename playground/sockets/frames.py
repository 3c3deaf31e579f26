"""From a frame to a message: bounds and form are checked before anything is done with what it says.

Knows: the messages, and the words that tell a client what is wrong. Must not know: what a message does.
"""

from __future__ import annotations

from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from playground.gate import GateError, read_object
from playground.sockets.protocol import (
    MAX_FRAME_BYTES,
    MAX_REF_LENGTH,
    Ack,
    Cancel,
    ClientMessage,
    Generate,
    Ping,
    ProtocolError,
    Resume,
)

LABELLED = 16 << 10  # characters of a frame that is refused unread and yet searched for its labels
_client = TypeAdapter(ClientMessage)


def decode(text: str | None, data: bytes | None = None) -> Generate | Cancel | Resume | Ack | Ping:
    """The message in a frame, given as its text or, for a binary frame, its bytes. Raises ProtocolError."""
    if text is None:
        raise ProtocolError("bad_json", "messages are JSON in text frames; this was a binary frame")
    # Characters first: each takes a byte or more, so a huge frame is not encoded only to be measured.
    if len(text) > MAX_FRAME_BYTES:
        words = f"the frame has {len(text)} characters; at most {MAX_FRAME_BYTES} bytes are read"
        raise ProtocolError("too_large", words)
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raise ProtocolError("bad_json", "the frame holds half a surrogate pair, which is not text") from None
    try:
        value = read_object(raw, MAX_FRAME_BYTES, "the frame")
    except GateError as error:
        raise ProtocolError(error.code, str(error), *_labels(error.value)) from None
    try:
        return _client.validate_python(value)
    except ValidationError as error:
        raise ProtocolError("bad_message", sentence(error), *_labels(value)) from None


def labels_of(text: str | None) -> tuple[str | None, str | None]:
    """`ref` and `request_id` of a frame that nobody is going to read: so far as they are found for little."""
    if text is None or len(text) > LABELLED:
        return None, None
    try:
        value = orjson.loads(text)
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return None, None
    return _labels(value) if isinstance(value, dict) else (None, None)


def _labels(value: dict[str, Any]) -> tuple[str | None, str | None]:
    """`ref` and `request_id` of a message that is wrong elsewhere, so that its sender knows which one failed."""

    def label(name: str, longest: int) -> str | None:
        found = value.get(name)
        return found if isinstance(found, str) and len(found) <= longest and "\0" not in found else None

    return label("ref", MAX_REF_LENGTH), label("request_id", 64)


def sentence(error: ValidationError) -> str:
    """What is wrong with a message, for whoever sent it."""
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "union_tag_invalid":
        return f"there is no message of this type; there are: {first['ctx']['expected_tags']}"
    if first["type"] == "union_tag_not_found":
        return "the message has no type"
    if cause := first.get("ctx", {}).get("error"):
        return str(cause)
    kind, *path = first["loc"]
    place = ".".join(str(part)[:40] for part in path)
    if first["type"] == "extra_forbidden":
        return f"{kind} has no field {place}"
    if first["type"] == "missing":
        return f"{kind} needs the field {place}"
    message = first["msg"]
    return f"{place} of {kind}: {message[0].lower()}{message[1:]}"
