"""/ws/chat/: the flow of messages, and that nothing a client sends ends the socket."""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.sockets import Browser

from inference.scheduling.request import RequestRefused
from inference.serving.messages import EngineStatus
from playground.models import Conversation, InferenceRequest
from playground.sockets import base, frames

pytestmark = pytest.mark.django_db(transaction=True)
STRANGER = str(uuid.UUID(int=5))


def say(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def test_hello_says_how_long_a_request_may_be(alice: User, gateway: Any) -> None:
    lengths = ({}, {"max_model_len": 8192}, {"max_model_len": 4096})
    gateway.client.statuses = [EngineStatus(str(n), n, "ready", False, 0.0, settings=s) for n, s in enumerate(lengths)]
    browser = await Browser.of(alice)
    assert browser.hello["limits"]["max_model_len"] == 4096
    await browser.disconnect()


async def test_hello(alice: User, gateway: Any) -> None:
    browser = await Browser.of(alice)
    assert browser.hello["type"] == "hello"
    assert browser.hello["protocol"] == 1
    assert browser.hello["model"] == "SmolLM2-135M-Instruct"
    assert browser.hello["limits"]["message_bytes"] == 262144
    await browser.disconnect()


async def test_an_answer_from_accepted_to_finished(alice: User, gateway: Any) -> None:
    browser = await Browser.of(alice)
    await browser.ask(type="generate", ref="mine", messages=say("one two three"), params={"seed": 9})
    accepted, *deltas, finished = await browser.hear_until("finished")
    request_id = accepted["request_id"]
    assert accepted == {"type": "accepted", "ref": "mine", "request_id": request_id, "position": 3}
    assert [delta["seq"] for delta in deltas] == [1, 2, 3]
    assert "".join(delta["text"] for delta in deltas) == "one two three "
    assert deltas[0] == {
        "type": "delta", "request_id": request_id, "seq": 1, "text": "one ", "tokens": 1, "iteration": 1,
    }  # fmt: skip
    assert finished == {
        "type": "finished",
        "request_id": request_id,
        "seq": 4,
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 5, "completion_tokens": 3, "cached_tokens": 0},
        "receipt": {"queue": 1.0, "prefill": 2.0, "decode": 3.0, "total": 6.0},
    }
    row = await InferenceRequest.objects.aget(pk=request_id)
    assert (row.ref, row.seed, row.messages) == ("mine", 9, say("one two three"))
    await browser.disconnect()


async def test_who_waits_is_told_where_it_stands(alice: User, gateway: Any) -> None:
    browser = await Browser.of(alice)
    await browser.ask(type="generate", prompt="patient people")
    accepted, *queued, first, _, _ = await browser.hear_until("finished")
    request_id = accepted["request_id"]
    assert queued == [
        {"type": "queued", "request_id": request_id, "position": 2, "reason": "no_seat", "eta_ms": 1500.0},
        {"type": "queued", "request_id": request_id, "position": 0, "reason": "behind", "eta_ms": None},
    ]
    assert (accepted["type"], first["type"]) == ("accepted", "delta")
    await browser.disconnect()


async def test_cancel_is_heard_while_answers_stream(alice: User, gateway: Any) -> None:
    browser = await Browser.of(alice)
    for ref in ("a", "b"):
        await browser.ask(type="generate", ref=ref, prompt=f"slow {ref}")
    ids = {}
    while len(ids) < 2:
        frame = await browser.hear("accepted")
        ids[frame["ref"]] = frame["request_id"]
    await browser.ask(type="cancel", request_id=ids["a"])
    finished = await browser.hear("finished")
    assert (finished["request_id"], finished["finish_reason"]) == (ids["a"], "cancelled")
    await browser.ask(type="ping", t=5)
    assert await browser.hear("pong") == {"type": "pong", "t": 5}
    await browser.disconnect()


async def test_leaving_ends_what_streams(alice: User, gateway: Any) -> None:
    browser = await Browser.of(alice)
    await browser.ask(type="generate", prompt="slow")
    await browser.hear("delta")
    assert gateway.followers == 1
    await browser.disconnect()
    assert gateway.followers == 0


async def test_resume_gives_the_rest(alice: User, gateway: Any) -> None:
    first = await Browser.of(alice)
    await first.ask(type="generate", prompt="one two three four")
    request_id = (await first.hear("accepted"))["request_id"]
    await first.hear_until("finished")
    await first.disconnect()
    second = await Browser.of(alice)
    await second.ask(type="resume", request_id=request_id, after_seq=2)
    assert [frame["seq"] for frame in await second.hear_until("finished")] == [3, 4, 5]
    await second.disconnect()


async def test_resuming_what_already_streams_here_sends_nothing_twice(alice: User, gateway: Any) -> None:
    browser = await Browser.of(alice)
    await browser.ask(type="generate", prompt="slow two")
    request_id = (await browser.hear("accepted"))["request_id"]
    await browser.hear("delta")
    await browser.hear("delta")
    await browser.ask(type="resume", request_id=request_id, after_seq=2)
    await browser.ask(type="cancel", request_id=request_id)
    assert [frame["type"] for frame in await browser.hear_until("finished")] == ["finished"]
    assert await browser.receive_nothing(0.05)
    await browser.disconnect()


@pytest.mark.parametrize("kind", ["cancel", "resume"])
async def test_requests_of_others_do_not_exist(kind: str, alice: User, bob: User, gateway: Any) -> None:
    mine = await Browser.of(alice)
    await mine.ask(type="generate", prompt="slow secret")
    request_id = (await mine.hear("accepted"))["request_id"]
    theirs = await Browser.of(bob)
    answers = []
    for wanted in (request_id, request_id.upper(), STRANGER, "no-id", "", "{" + request_id + "}"):
        await theirs.ask(type=kind, request_id=wanted)
        answers.append(await theirs.hear())
    assert {(answer["type"], answer["code"]) for answer in answers} == {("error", "not_found")}
    assert len({answer["message"] for answer in answers}) == 1
    assert not gateway.cancelled
    await mine.disconnect()
    await theirs.disconnect()


async def test_a_conversation_must_be_ones_own(alice: User, bob: User, gateway: Any) -> None:
    conversation = await Conversation.objects.acreate(owner=alice)
    theirs = await Browser.of(bob)
    await theirs.ask(type="generate", ref="x", prompt="hi", conversation=str(conversation.pk))
    error = await theirs.hear()
    assert (error["code"], error["ref"]) == ("not_found", "x")
    mine = await Browser.of(alice)
    await mine.ask(type="generate", messages=say("First   words\nhere"), conversation=str(conversation.pk))
    await mine.hear_until("finished")
    await conversation.arefresh_from_db()
    assert conversation.title == "First words here"
    assert await conversation.requests.acount() == 1
    assert await InferenceRequest.objects.acount() == 1
    await mine.disconnect()
    await theirs.disconnect()


@pytest.mark.parametrize(
    ("params", "part"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": "0.7"}, "temperature must be a number"),
        ({"temperature": True}, "temperature must be a number"),
        ({"temperature": None}, "temperature must be a number"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokenz": 5}, "max_tokenz"),
        ({"seed": 2**63}, "seed is"),
        ({"stop_token_ids": [-1]}, "stop_token_ids is -1"),
        ({"n": 17}, "n is 17; it must be from 1 to 16"),
        ({"logprobs": 21}, "logprobs is 21"),
        ({"priority": -3}, "priority is -3"),
        ({"response_format": {"type": "xml"}}, "response_format must be an object with a type"),
        ({"response_format": {"type": "regex", "regex": "x" * 70_000}}, "at most 65536"),
    ],
)
async def test_bad_params(params: dict[str, Any], part: str, alice: User, gateway: Any) -> None:
    browser = await Browser.of(alice)
    await browser.ask(type="generate", ref="r", prompt="hi", params=params)
    error = await browser.hear()
    assert (error["type"], error["code"], error["ref"]) == ("error", "bad_params", "r")
    assert part in error["message"]
    await browser.disconnect()


async def test_several_answers_to_one_question(alice: User, gateway: Any) -> None:
    browser = await Browser.of(alice)
    await browser.ask(type="generate", ref="mine", prompt="one two", params={"n": 3, "seed": 9})
    accepted: dict[str, str] = {}
    texts: dict[str, str] = {}
    finished = 0
    while finished < 3:
        frame = await browser.hear()
        if frame["type"] == "accepted":
            accepted[frame["request_id"]] = frame["ref"]
        elif frame["type"] == "delta":
            texts[frame["request_id"]] = texts.get(frame["request_id"], "") + frame["text"]
        else:
            finished += frame["type"] == "finished"
    assert list(accepted.values()) == ["mine"] * 3
    assert texts == dict.fromkeys(accepted, "one two ")
    seeds = [row.seed async for row in InferenceRequest.objects.filter(pk__in=accepted)]
    assert 9 in seeds
    assert len(set(seeds)) == 3
    await browser.disconnect()


async def test_a_turn_of_a_conversation_has_one_answer(alice: User, gateway: Any) -> None:
    conversation = await Conversation.objects.acreate(owner=alice)
    browser = await Browser.of(alice)
    await browser.ask(type="generate", ref="r", prompt="hi", params={"n": 2}, conversation=str(conversation.pk))
    error = await browser.hear()
    assert (error["code"], error["ref"]) == ("bad_params", "r")
    assert error["message"] == "n is 2; in a conversation each turn has one answer, so n must be 1"
    assert not await InferenceRequest.objects.aexists()
    await browser.disconnect()


async def test_only_staff_may_go_before_others(alice: User, staff: User, gateway: Any) -> None:
    browser = await Browser.of(alice)
    await browser.ask(type="generate", ref="r", prompt="hi", params={"priority": 1})
    error = await browser.hear()
    assert (error["code"], error["ref"]) == ("forbidden", "r")
    assert error["message"] == "priority is 1; only staff may go before others, so at most 0 is allowed"
    await browser.ask(type="generate", prompt="hi", params={"priority": -2})
    assert (await browser.hear())["type"] == "accepted"
    await browser.disconnect()
    browser = await Browser.of(staff)
    await browser.ask(type="generate", prompt="hi", params={"priority": 2})
    assert (await browser.hear())["type"] == "accepted"
    await browser.disconnect()


async def test_logprobs_come_with_their_tokens(alice: User, gateway: Any) -> None:
    browser = await Browser.of(alice)
    await browser.ask(type="generate", prompt="likely words", params={"logprobs": 1})
    accepted, *deltas, finished = await browser.hear_until("finished")
    token = {"token_id": 1, "token": "likely", "logprob": -0.5, "top": []}
    assert [delta["logprobs"][0]["token"] for delta in deltas] == ["likely", "words"]
    assert deltas[0]["logprobs"] == [token]
    likely = {"token_id": 7, "token": "x", "logprob": -2.0}
    assert finished["logprobs"] == [{"token_id": 2, "token": "", "logprob": -0.25, "top": [likely]}]
    await browser.ask(type="resume", request_id=accepted["request_id"], after_seq=0)
    assert await browser.hear_until("finished") == [*deltas, finished]
    await browser.disconnect()


async def test_refusals_keep_their_code(alice: User, gateway: Any) -> None:
    browser = await Browser.of(alice)
    gateway.refusal = RequestRefused("queue_full", "2000 requests wait, and 2000 are allowed")
    await browser.ask(type="generate", ref="r", prompt="hi")
    assert await browser.hear() == {
        "type": "error", "code": "queue_full", "message": "2000 requests wait, and 2000 are allowed", "ref": "r",
    }  # fmt: skip
    gateway.refusal = RequestRefused("rate_limited", "try again in 7 s", 7.0)
    await browser.ask(type="generate", ref="r", prompt="hi")
    assert (await browser.hear())["retry_after"] == 7.0
    gateway.refusal = OperationalError("disk I/O error /a/path")
    await browser.ask(type="generate", ref="r", prompt="hi")
    error = await browser.hear()
    assert error["code"] == "engine_unavailable"
    assert "/a/path" not in error["message"]
    await browser.disconnect()


async def test_a_failed_answer_says_why_and_then_ends(alice: User, gateway: Any) -> None:
    browser = await Browser.of(alice)
    await browser.ask(type="generate", prompt="nan")
    frames = await browser.hear_until("finished")
    assert [frame["type"] for frame in frames] == ["accepted", "delta", "error", "finished"]
    assert frames[2]["code"] == "numerical_error"
    assert frames[3]["finish_reason"] == "error"
    await browser.disconnect()


async def test_a_fault_in_the_server_is_an_error_frame_without_secrets(alice: User, gateway: Any) -> None:
    browser = await Browser.of(alice)
    await browser.ask(type="generate", prompt="explode")
    error = await browser.hear("error")
    assert error["code"] == "internal"
    assert error["request_id"]
    assert "secret" not in error["message"]
    gateway.refusal = ZeroDivisionError("secret")
    await browser.ask(type="generate", prompt="hi", ref="r")
    error = await browser.hear("error")
    assert (error["code"], error["ref"]) == ("internal", "r")
    await browser.ask(type="ping")
    assert (await browser.hear())["type"] == "pong"
    await browser.disconnect()


MALFORMED = {
    "": "bad_json",
    "{": "bad_json",
    "nonsense": "bad_json",
    "\ud800": "bad_json",
    '{"type":"ping","t":NaN}': "bad_json",
    '{"type":"generate","prompt":"\\ud800"}': "bad_json",
    "[" * 100_000: "bad_json",
    '{"type":"ping","t":' + "[" * 40 + "]" * 40 + "}": "bad_json",
    "[]": "bad_message",
    "null": "bad_message",
    "{}": "bad_message",
    '{"type":"fly"}': "bad_message",
    '{"type":{}}': "bad_message",
    '{"type":"_handle"}': "bad_message",
    '{"type":"generate"}': "bad_message",
    '{"type":"generate","prompt":"a","messages":[{"role":"user","content":"a"}]}': "bad_message",
    '{"type":"generate","messages":[]}': "bad_message",
    '{"type":"generate","messages":[{"role":"tool","content":"a"}]}': "bad_message",
    '{"type":"generate","messages":[{"role":"user","content":["a"]}]}': "bad_message",
    '{"type":"generate","prompt":"a","max_tokens":5}': "bad_message",
    '{"type":"generate","prompt":"a","params":[]}': "bad_message",
    '{"type":"generate","prompt":"a\\u0000b"}': "bad_message",
    '{"type":"generate","prompt":5}': "bad_message",
    '{"type":"resume","request_id":"a","after_seq":-1}': "bad_message",
    '{"type":"resume","request_id":"a","after_seq":1.5}': "bad_message",
    '{"type":"cancel"}': "bad_message",
    '{"type":"ack","request_id":"a"}': "bad_message",
    '{"type":"generate","prompt":"' + "x" * 262_144 + '"}': "too_large",
    '{"type":"generate","prompt":"' + "é" * 140_000 + '"}': "too_large",
}


async def test_malformed_frames_get_an_error_and_the_socket_lives(alice: User, gateway: Any, settings: Any) -> None:
    settings.BATCHSCOPE = settings.BATCHSCOPE.model_copy(update={"messages_per_second": 1000})
    browser = await Browser.of(alice)
    for frame, code in MALFORMED.items():
        await browser.send_input({"type": "websocket.receive", "text": frame})
        answer = await browser.hear()
        assert (answer["type"], answer["code"]) == ("error", code), frame[:60]
    for data in (b"", b"\xff\xfe", b'{"type":"ping"}'):
        await browser.send_input({"type": "websocket.receive", "bytes": data})
        assert (await browser.hear())["code"] == "bad_json"
    await browser.ask(type="ping", t="still here")
    assert await browser.hear() == {"type": "pong", "t": "still here"}
    assert not await InferenceRequest.objects.aexists()
    await browser.disconnect()


async def test_a_large_frame_is_read_beside_the_loop(
    alice: User, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others' streams go on meanwhile."""
    on_the_loop = []

    def decode(text: str, data: bytes | None) -> Any:
        on_the_loop.append(threading.current_thread() is threading.main_thread())
        return frames.decode(text, data)

    monkeypatch.setattr(base, "decode", decode)
    browser = await Browser.of(alice)
    await browser.ask(type="ping", t="small")
    await browser.hear("pong")
    await browser.ask(type="generate", prompt="x" * base.DECODED_AT_ONCE)
    await browser.hear("finished")
    assert on_the_loop == [True, False]
    await browser.disconnect()


async def test_a_ping_that_is_no_ping_is_told_what_one_is(alice: User, gateway: Any) -> None:
    browser = await Browser.of(alice)
    for t, words in (("x" * 65, "t of ping has 65 characters"), ([1], "must be a number or a text"), (True, "number")):
        await browser.ask(type="ping", t=t)
        error = await browser.hear()
        assert (error["code"], words in error["message"]) == ("bad_message", True)
    for good in ("x" * 64, 1795917655250, 0.5):
        await browser.ask(type="ping", t=good)
        assert (await browser.hear())["t"] == good
    await browser.disconnect()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    ["type", "ref", "messages", "prompt", "params", "conversation", "request_id", "seq", "after_seq", "t"]
)
TYPES = st.sampled_from(["generate", "cancel", "resume", "ack", "ping"])
FRAMES = (
    st.text()
    | st.binary()
    | JSON.map(json.dumps)
    | st.builds(lambda kind, rest: json.dumps({**rest, "type": kind}), TYPES, st.dictionaries(FIELDS, JSON, max_size=4))
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None)
@given(frame=FRAMES)
def test_any_frame_decodes_or_is_a_protocol_error(frame: str | bytes) -> None:
    from playground.sockets.frames import decode
    from playground.sockets.protocol import ProtocolError

    message = None
    with contextlib.suppress(ProtocolError):  # and nothing but that may be raised
        message = decode(frame) if isinstance(frame, str) else decode(None, frame)
    assert message is None or message.type in ("generate", "cancel", "resume", "ack", "ping")
