"""Frames that mean nothing, of every kind: each is answered, the socket lives, and nobody else notices.

What breaks the WebSocket protocol itself ends the socket with the code for it.
"""

from __future__ import annotations

import asyncio
import json
import struct
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from support.raw_socket import BINARY, CLOSE, PING, TEXT, RawSocket, frame
from support.server import Answer, Server

from playground.sockets.frames import decode
from playground.sockets.protocol import MAX_FRAME_BYTES, ProtocolError

FRAMES = 10_000
AT_ONCE = 100

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NAMES = ["type", "ref", "messages", "prompt", "params", "conversation", "request_id", "seq", "after_seq", "t", "role"]
TYPES = ["generate", "cancel", "resume", "ack", "ping", "hello", "delta", "close", "_handle", "", "Generate", "type"]
FIELDS = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4)
MESSAGES = st.builds(lambda kind, rest: json.dumps({**rest, "type": kind}), st.sampled_from(TYPES), FIELDS)
CUT = st.builds(lambda text, end: text[: end % (len(text) + 1)], MESSAGES, st.integers(0, 1000))
NESTED = st.builds(
    lambda depth, pair: '{"type":"ping","t":' + pair[0] * depth + pair[1] * depth + "}",
    st.integers(20, 3000),
    st.sampled_from(["[]", "{}", ['{"a":', "}"], "[[", '""']),
)
ESCAPES = st.builds(
    lambda escape, where: json.dumps({"type": "generate", where: "x"}).replace('"x"', f'"{escape}"'),
    st.sampled_from([r"\ud800", r"\udc00\ud800", r"\u0000", r"\x", r"\uZZZZ", "\\", "\x01", r"�"]),
    st.sampled_from(NAMES),
)
LARGE = st.builds(
    lambda size, char: '{"type":"generate","prompt":"' + char * size + '"}',
    st.sampled_from([MAX_FRAME_BYTES // 4, MAX_FRAME_BYTES // 3 + 1]),
    st.sampled_from(["\x00", "\t", "\n"]),
)
ANYTHING = st.one_of(st.text(), st.binary(), JSON.map(json.dumps), MESSAGES, MESSAGES, CUT, NESTED, ESCAPES)


def error_of(data: str | bytes) -> str | None:
    """The code that a frame is answered with; None for a message that is none of our business here."""
    try:
        decode(data) if isinstance(data, str) else decode(None, data)
    except ProtocolError as error:
        return error.code
    return None


def malformed(count: int) -> list[tuple[str | bytes, str]]:
    found: list[tuple[str | bytes, str]] = []

    @seed(31)
    @settings(
        max_examples=count // AT_ONCE * 2,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(ANYTHING, min_size=AT_ONCE, max_size=AT_ONCE), LARGE)
    def collect(batch: list[str | bytes], large: str) -> None:
        if len(found) < count:
            found.extend((one, code) for one in [*batch[1:], large] if (code := error_of(one)))

    collect()
    return found[:count]


@pytest.fixture(scope="module")
def patient(tmp_path_factory: Any, scripted: str) -> Any:
    server = Server(model=scripted, messages_per_second="100000")
    try:
        server.start().login()
        yield server
    finally:
        server.close()


def has_no_traceback(server: Server) -> bool:
    return "Traceback" not in server.output and "exception" not in server.output.lower()


async def test_ten_thousand_malformed_frames(patient: Server, story: Any) -> None:
    frames = await asyncio.to_thread(malformed, FRAMES)
    assert len(frames) == FRAMES
    assert {code for _, code in frames} == {"bad_json", "bad_message"}
    pids = patient.children()

    async def neighbour() -> list[str]:
        texts = []
        async with patient.chat() as chat:
            for n in (1, 2):
                request_id = await chat.generate(f"story {n} please", max_tokens=600, temperature=0)
                texts.append((await chat.read(request_id, Answer())).text)
        return texts

    reading = asyncio.create_task(neighbour())
    async with patient.chat() as chat:
        await chat.receive_type("hello")
        for start in range(0, FRAMES, AT_ONCE):
            batch = frames[start : start + AT_ONCE]
            for data, _ in batch:
                await chat.connection.send(data)
            answers = [await chat.receive() for _ in batch]
            assert [(answer["type"], answer["code"]) for answer in answers] == [("error", code) for _, code in batch]
        await chat.send(type="ping", t="still here")
        assert await chat.receive() == {"type": "pong", "t": "still here"}
    assert await reading == [story(1), story(2)]
    assert patient.children() == pids
    assert has_no_traceback(patient)


TOO_LONG = MAX_FRAME_BYTES + 1
BREACHES = {
    "not masked": (frame(TEXT, b"{}", masked=False), 1002),
    "reserved bit": (frame(TEXT, b"{}", rsv=4), 1002),
    "reserved opcode": (frame(3, b"{}"), 1002),
    "reserved control opcode": (frame(11, b""), 1002),
    "ping in parts": (frame(PING, b"", fin=False), 1002),
    "long ping": (frame(PING, b"x" * 126), 1002),
    "continues nothing": (frame(0, b"{}"), 1002),
    "begins inside another": (frame(TEXT, b"{", fin=False) + frame(TEXT, b"}"), 1002),
    "close of one byte": (frame(CLOSE, b"x"), 1002),
    "close with a code that there is not": (frame(CLOSE, struct.pack("!H", 999)), 1002),
    "close with a code that is never sent": (frame(CLOSE, struct.pack("!H", 1006)), 1002),
    "negative length": (struct.pack("!BBQI", 0x81, 0xFF, 1 << 63, 0), 1002),
    "not UTF-8": (frame(TEXT, b"\xff\xfe"), 1007),
    "a surrogate in UTF-8": (frame(TEXT, b"\xed\xa0\x80"), 1007),
    "half a character": (frame(TEXT, b"\xe4\xbd"), 1007),
    "close reason that is not UTF-8": (frame(CLOSE, struct.pack("!H", 1000) + b"\xff"), 1007),
    "too long": (frame(TEXT, b"", length=TOO_LONG), 1009),
    "binary and too long": (frame(BINARY, b"", length=TOO_LONG), 1009),
    "claims exabytes": (frame(TEXT, b"", length=1 << 62), 1009),
    "too long in parts": (
        frame(TEXT, b"x" * (TOO_LONG // 2 + 1), fin=False) + frame(0, b"x" * (TOO_LONG // 2 + 1)),
        1009,
    ),
    "an honest close": (frame(CLOSE, struct.pack("!H", 1000)), 1000),
}


@pytest.mark.parametrize("name", BREACHES)
def test_breaches_of_the_protocol_end_the_socket_with_their_code(name: str, patient: Server) -> None:
    data, code = BREACHES[name]
    cookie = "; ".join(f"{key}={value}" for key, value in patient.cookies.items())
    with RawSocket(patient.port, "/ws/chat/", {"Cookie": cookie, "Origin": patient.base_url}) as raw:
        assert raw.status == 101
        assert json.loads(raw.receive()[1])["type"] == "hello"
        raw.send(data)
        assert raw.close_code() == code
    assert has_no_traceback(patient)


def test_half_a_frame_and_silence_hurt_nobody(patient: Server) -> None:
    cookie = "; ".join(f"{key}={value}" for key, value in patient.cookies.items())
    with RawSocket(patient.port, "/ws/chat/", {"Cookie": cookie, "Origin": patient.base_url}) as raw:
        raw.send(frame(TEXT, b"x" * 1000)[:500])
    time.sleep(0.2)
    assert patient.get("/health").status_code == 200
    assert has_no_traceback(patient)
