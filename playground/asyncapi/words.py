"""What the AsyncAPI document says in words: channels, ways to sign in, close codes, a line for each message.

Knows: the protocol as its readers need it. Must not know: the form of the document.
"""

from __future__ import annotations

from typing import Any

ABOUT = """Ask for answers and stream them, several at once on one socket.

A frame is one JSON object with a `type`. `generate` is answered with `accepted`: from there on the request is stored
and ends in exactly one `finished`. Between them come `delta` frames; their `text`, joined, is the answer. `seq` counts
deltas from 1 without gaps; a frame for a slow reader stands for those from `first_seq` to `seq`. Whoever comes back
after a broken connection sends `resume` with the last `seq` it has and gets the rest. A frame that can't be used is
answered with `error`; the socket stays open.

A frame has at most 256 KiB and 32 levels; NUL characters and half surrogate pairs are no text and are refused."""

_BEARER = {
    "type": "object",
    "required": ["Authorization"],
    "properties": {"Authorization": {"type": "string", "description": "`Bearer KEY`"}},
}
_COOKIE = {
    "type": "object",
    "required": ["Cookie", "Origin"],
    "properties": {
        "Cookie": {"type": "string", "description": "that of a signed-in session"},
        "Origin": {"type": "string", "description": "scheme, host and port of this very service"},
    },
}
_EITHER = {"type": "object", "properties": {**_BEARER["properties"], **_COOKIE["properties"]}}
CHANNELS: dict[str, dict[str, Any]] = {
    "v1": {
        "address": "/ws/v1/",
        "title": "Programs",
        "description": "For programs: an API key with the scope `generate`, no cookies. Keys are made in the admin and "
        "by `manage.py createkey --name NAME`.",
        "headers": _BEARER,
        "security": ("key",),
    },
    "chat": {
        "address": "/ws/chat/",
        "title": "Browsers",
        "description": "For the chat page: the same messages, with a session's cookie and the exact Origin.",
        "headers": _COOKIE,
        "security": ("session",),
    },
    "scheduler": {
        "address": "/ws/scheduler/",
        "title": "The live scheduler",
        "description": "What the engines do, iteration by iteration: for accounts that may watch the scheduler, or for "
        "a key with the scope `scheduler`. After `hello` a `snapshot`, then `iterations`.",
        "headers": _EITHER,
        "security": ("session", "key"),
    },
}
SCHEMES: dict[str, dict[str, Any]] = {
    "key": {"type": "http", "scheme": "bearer", "description": "An API key: `Authorization: Bearer KEY`."},
    "session": {
        "type": "httpApiKey",
        "name": "sessionid",
        "in": "cookie",
        "description": "The cookie of a signed-in browser; the Origin must be this service's own.",
    },
}
CLOSE_CODES = {
    1008: "more messages a second than allowed, for many seconds",
    1009: "a frame of more than 256 KiB came",
    1012: "the server stops; connect again and resume",
    1013: "nothing could be sent for 30 s, since nothing was read: connect again and resume. Or there are too many "
    "sockets, or accounts can't be looked up just now: come back later",
    4401: "no account, or a key that is unknown, revoked or expired; also on an open socket, within 5 s of a sign-out "
    "or a change of rights",
    4403: "an account or a key without the right to be here",
}
SUMMARIES = {
    "generate": "Ask for an answer.",
    "resume": "Go on with a request after a broken connection.",
    "cancel": "End a request; what it has so far stays.",
    "ack": "Say how far an answer has been read: flow control.",
    "ping": "Ask for a sign of life.",
    "hello": "The first frame: protocol, model, limits.",
    "accepted": "The request is stored and has its id.",
    "queued": "Where a waiting request stands, and why it waits.",
    "delta": "The next piece of an answer.",
    "finished": "The last frame of a request: why it ended, what it used, where the time went.",
    "error": "Something can't be done; says what to change.",
    "pong": "The answer to ping.",
    "draining": "The service is about to stop: send nothing new here.",
    "snapshot": "How all engines look at this moment.",
    "iterations": "The newest iterations of one engine.",
    "blocks": "A part of an engine's KV block map.",
    # Of operations that are not named after one message:
    "unasked": "What the server sends without being asked.",
    "chat": "The messages of /ws/v1/, for the chat page.",
    "watch": "What the engines do, as it happens.",
}
REPLIES: dict[str, tuple[str, ...]] = {
    "generate": ("accepted", "queued", "delta", "finished", "error"),
    "resume": ("queued", "delta", "finished", "error"),
    "cancel": ("finished", "error"),
    "ping": ("pong",),
}
UNASKED = ("hello", "draining", "error")
