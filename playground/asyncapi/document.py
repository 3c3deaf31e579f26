"""The AsyncAPI 3 document of the sockets: what `/asyncapi.json` answers, and what docs/asyncapi.json keeps.

Knows: channels, who sends what on them, how one signs in, what a close code means. Must not know: how a message is
handled. "receive" and "send" are the server's view, as AsyncAPI has it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from playground.asyncapi.examples import EXAMPLES
from playground.asyncapi.schemas import AT, CLIENT, FEED, SERVER, joined, schema_name, schemas, type_of
from playground.asyncapi.words import ABOUT, CHANNELS, CLOSE_CODES, REPLIES, SCHEMES, SUMMARIES, UNASKED
from playground.sockets.protocol import PROTOCOL_VERSION

VERSION = "3.0.0"
MESSAGES: dict[str, type[BaseModel]] = {type_of(model): model for model in (*CLIENT, *SERVER, *FEED)}
FROM_CLIENTS = tuple(type_of(model) for model in CLIENT)
FROM_SERVER = tuple(type_of(model) for model in SERVER)
FEED_ONLY = tuple(type_of(model) for model in FEED)
ON_CHANNEL = {
    "v1": (*FROM_CLIENTS, *FROM_SERVER),
    "chat": (*FROM_CLIENTS, *FROM_SERVER),
    "scheduler": ("ping", "hello", *FEED_ONLY, "pong", "error", "draining"),
}


def document(host: str = "localhost:8000", secure: bool = False) -> dict[str, Any]:
    """host: by which its reader reaches the service."""
    server = {"host": host, "protocol": "wss" if secure else "ws", "description": "This service."}
    return {
        "asyncapi": VERSION,
        "info": {
            "title": "Batchscope WebSocket API",
            "version": f"{PROTOCOL_VERSION}.0.0",
            "description": _about(),
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {"this": server},
        "channels": {name: _channel(name) for name in CHANNELS},
        "operations": _operations(),
        "components": _components(),
    }


@lru_cache(maxsize=1)
def _components() -> dict[str, Any]:
    messages = {kind: _message(kind) for kind in MESSAGES}
    return {"messages": messages, "schemas": schemas(), "securitySchemes": SCHEMES}


def _about() -> str:
    """With what viewers don't show: a channel's own words, close codes."""
    channels = "\n".join(f"- `{words['address']}`: {words['description']}" for words in CHANNELS.values())
    codes = "\n".join(f"| {code} | {meaning} |" for code, meaning in CLOSE_CODES.items())
    return f"{ABOUT}\n\n{channels}\n\n| close code | when |\n| --- | --- |\n{codes}"


def _channel(name: str) -> dict[str, Any]:
    words = CHANNELS[name]
    return {
        "address": words["address"],
        "title": words["title"],
        "description": words["description"],
        "servers": [{"$ref": "#/servers/this"}],
        "messages": {kind: {"$ref": f"#/components/messages/{kind}"} for kind in ON_CHANNEL[name]},
        "bindings": {"ws": {"method": "GET", "headers": words["headers"], "bindingVersion": "0.1.0"}},
        "x-close-codes": {str(code): meaning for code, meaning in CLOSE_CODES.items()},
    }


def _message(kind: str) -> dict[str, Any]:
    model = MESSAGES[kind]
    return {
        "name": kind,
        "title": kind,
        "summary": SUMMARIES[kind],
        "description": joined(model.__doc__ or ""),
        "payload": {"$ref": AT + schema_name(model)},
        "examples": [{"name": kind, "payload": EXAMPLES[kind]}],
    }


def _operations() -> dict[str, Any]:
    """On the channel of programs each message of a client is one, with what answers it."""
    return {
        **{f"v1.{kind}": _asked("v1", kind) for kind in FROM_CLIENTS},
        "v1.unasked": _operation("v1", "send", UNASKED, "unasked"),
        "chat.client": _operation("chat", "receive", FROM_CLIENTS, "chat"),
        "chat.server": _operation("chat", "send", FROM_SERVER, "chat"),
        "scheduler.watch": _operation("scheduler", "send", ("hello", *FEED_ONLY, *UNASKED[1:]), "watch"),
        "scheduler.ping": _asked("scheduler", "ping"),
    }


def _asked(channel: str, kind: str) -> dict[str, Any]:
    made = _operation(channel, "receive", (kind,), kind)
    if replies := REPLIES.get(kind):
        made["reply"] = {"channel": made["channel"], "messages": _refs(channel, replies)}
    return made


def _operation(channel: str, action: str, kinds: tuple[str, ...], title: str) -> dict[str, Any]:
    schemes = CHANNELS[channel]["security"]
    return {
        **{"action": action, "title": title, "summary": SUMMARIES[title]},
        "channel": {"$ref": f"#/channels/{channel}"},
        "messages": _refs(channel, kinds),
        "security": [{"$ref": f"#/components/securitySchemes/{scheme}"} for scheme in schemes],
        "tags": [{"name": CHANNELS[channel]["address"]}],
    }


def _refs(channel: str, kinds: tuple[str, ...]) -> list[dict[str, str]]:
    return [{"$ref": f"#/channels/{channel}/messages/{kind}"} for kind in kinds]
