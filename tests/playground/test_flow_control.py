"""What is sent beyond what a client reads stays bounded, and nothing of an answer is lost by it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sockets import Browser, cookie_of

from inference.serving.messages import EngineStatus
from playground.sockets import flow, scheduler, snapshot
from playground.sockets.base import STOPPED_READING, UNSENT
from playground.sockets.flow import HELD, JOINED, WINDOW, Flow
from playground.sockets.protocol import DeltaFrame, Finished, ServerModel, TokenLogprobs, Usage

USAGE = Usage(prompt_tokens=1, completion_tokens=1, cached_tokens=0)


def delta(seq: int, text: str = "word ", request_id: str = "r", **fields: Any) -> DeltaFrame:
    return DeltaFrame(request_id=request_id, seq=seq, text=text, tokens=1, iteration=seq, **fields)


def finished(seq: int, request_id: str = "r") -> Finished:
    return Finished(request_id=request_id, seq=seq, finish_reason="stop", usage=USAGE, receipt={})


class Client:
    """A socket's other side. `unsent`: what the server holds for it, as a test sets it."""

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []
        self.sizes: list[int] = []
        self.unsent = 0
        self.stuck = 0
        self.flow = Flow(self._take, lambda: self.unsent, self._stop)

    async def _take(self, text: str) -> None:
        self.frames.append(json.loads(text))
        self.sizes.append(len(text.encode()))

    async def _stop(self) -> None:
        self.stuck += 1
        self.flow.close()

    async def put(self, *frames: ServerModel) -> None:
        for frame in frames:
            await self.flow.put(frame, frame.request_id)  # type: ignore[attr-defined]

    def check(self, request_id: str = "r") -> str:
        """The text so far. Each frame goes on where the one before ended."""
        seq, texts = 0, []
        for frame in self.frames:
            if frame["request_id"] == request_id and frame["type"] == "delta":
                assert frame.get("first_seq", frame["seq"]) == seq + 1
                seq = frame["seq"]
                texts.append(frame["text"])
        return "".join(texts)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "PAUSES", (0.001, 0.002))


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


async def test_with_room_each_delta_is_sent_as_it_is() -> None:
    client = Client()
    await client.put(delta(1), delta(2, "é"), finished(3))
    assert client.frames == [json.loads(frame.frame()) for frame in (delta(1), delta(2, "é"), finished(3))]
    assert all("first_seq" not in frame for frame in client.frames)


async def test_who_acknowledges_nothing_is_bounded_by_what_the_server_holds() -> None:
    client = Client()
    client.unsent = WINDOW
    await client.put(*(delta(seq, f"{seq} ") for seq in range(1, 9)), finished(9))
    assert client.frames == []
    client.unsent = 0
    await until(lambda: len(client.frames) == 2)
    joined, last = client.frames
    assert joined == {**json.loads(delta(8, "1 2 3 4 5 6 7 8 ").frame()), "first_seq": 1, "tokens": 8}
    assert (last["type"], last["seq"]) == ("finished", 9)


async def test_logprobs_are_joined_too() -> None:
    client = Client()
    client.unsent = WINDOW
    tokens = [TokenLogprobs(token_id=i, token=str(i), logprob=-1.0, top=[]) for i in range(3)]
    await client.put(*(delta(i + 1, logprobs=[token]) for i, token in enumerate(tokens)))
    client.unsent = 0
    await until(lambda: client.frames)
    assert [token["token_id"] for token in client.frames[0]["logprobs"]] == [0, 1, 2]


async def test_who_acknowledges_gets_no_more_than_the_window_beyond_it() -> None:
    client = Client()
    client.flow.acknowledge("r", 0)
    bringing = asyncio.create_task(client.put(*(delta(seq, "x" * 1000) for seq in range(1, 601)), finished(601)))
    await until(lambda: sum(client.sizes) > WINDOW - 2000)
    await asyncio.sleep(0.02)
    assert sum(client.sizes) <= WINDOW
    assert not bringing.done(), "more than may wait was brought"
    read = 0
    while client.frames[-1]["type"] != "finished":
        client.flow.acknowledge("r", client.frames[-1]["seq"])
        read, before = len(client.sizes), len(client.frames)
        await until(lambda: len(client.frames) > before)  # noqa: B023
        assert sum(client.sizes[read:]) <= WINDOW
    await bringing
    assert client.check() == "x" * 600_000


async def test_one_ack_stands_for_all_that_came_before_it_on_the_socket() -> None:
    client = Client()
    client.flow.acknowledge("none", 5)
    big = "x" * (WINDOW // 2 - 1000)
    await client.put(delta(1, big, "a"), delta(1, big, "b"), delta(2, "small" * 1000, "a"))
    assert len(client.frames) == 2
    client.flow.acknowledge("b", 1)
    await until(lambda: len(client.frames) == 3)
    await client.put(delta(2, big, "b"))
    assert len(client.frames) == 4, "what was read of a and b is no burden any more"


async def test_an_ack_of_what_was_not_sent_is_no_news() -> None:
    client = Client()
    client.flow.acknowledge("r", 0)
    big = "x" * (WINDOW - 1000)
    await client.put(delta(1, big), delta(2, "small" * 1000))
    client.flow.acknowledge("other", 1 << 50)
    await asyncio.sleep(0.02)
    assert len(client.frames) == 1
    client.flow.close()


async def test_a_joined_frame_stays_small_and_requests_take_turns() -> None:
    client = Client()
    client.unsent = WINDOW
    for seq in range(1, 15):
        await client.put(delta(seq, "x" * 2000, "a"), delta(seq, "y" * 2000, "b"))
    client.unsent = 0
    await until(lambda: not client.flow._waiting)
    assert max(client.sizes) <= JOINED
    assert client.check("a") == "x" * 28_000
    assert client.check("b") == "y" * 28_000
    assert [frame["request_id"] for frame in client.frames[:2]] == ["a", "b"]


async def test_whoever_brings_more_than_may_wait_waits_too() -> None:
    client = Client()
    client.unsent = WINDOW
    bringing = asyncio.create_task(client.put(*(delta(seq, "x" * 1000) for seq in range(1, 201))))
    await until(lambda: client.flow._held >= HELD)
    await asyncio.sleep(0.01)
    assert client.flow._held < HELD + 2000
    client.unsent = 0
    await bringing
    await until(lambda: not client.flow._waiting)
    assert client.check() == "x" * 200_000


async def test_what_waits_is_forgotten_when_it_is_asked_for_anew() -> None:
    client = Client()
    client.unsent = WINDOW
    await client.put(delta(1), delta(2), delta(1, request_id="other"))
    client.flow.forget("r")
    await client.put(delta(2))
    client.unsent = 0
    await until(lambda: len(client.frames) == 2)
    assert [(frame["request_id"], frame["seq"]) for frame in client.frames] == [("other", 1), ("r", 2)]


async def test_a_reader_that_is_stuck_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "STUCK_AFTER", 0.03)
    client = Client()
    client.unsent = WINDOW
    await client.put(delta(1), delta(2))
    await until(lambda: client.stuck)
    await client.flow.until_room()
    assert client.frames == []
    monkeypatch.setattr(flow, "STUCK_AFTER", 30.0)
    slow = Client()
    slow.unsent = WINDOW
    await slow.put(delta(1))
    slow.unsent = 0
    await slow.flow.until_room()
    await until(lambda: slow.frames)
    assert slow.stuck == 0


@settings(max_examples=60, deadline=None, database=None)
@given(
    lengths=st.lists(st.integers(0, 40_000), min_size=1, max_size=40),
    reads=st.lists(st.integers(0, 5), max_size=40),
    acks=st.booleans(),
)
def test_however_it_is_read_the_text_is_whole_and_the_bounds_hold(
    lengths: list[int], reads: list[int], acks: bool
) -> None:
    async def run() -> None:
        client = Client()
        if acks:
            client.flow.acknowledge("r", 0)
        frames = [delta(seq, "é" * length) for seq, length in enumerate(lengths, 1)]
        bringing = asyncio.create_task(client.put(*frames, finished(len(frames) + 1)))
        read = 0
        for more in [*reads, *[3] * 100]:
            client.unsent = 0 if more else WINDOW
            await asyncio.sleep(0)
            await asyncio.sleep(0.0015 if client.flow._waiting else 0)
            assert client.flow._held < HELD + 90_000
            unread = client.sizes[read:]
            assert not acks or sum(unread) <= WINDOW or len(unread) == 1
            read = min(len(client.sizes), read + more)
            if acks and read:
                client.flow.acknowledge("r", client.frames[read - 1]["seq"])
            if client.frames and client.frames[-1]["type"] == "finished":
                break
        await bringing
        await until(lambda: client.frames[-1]["type"] == "finished")
        assert client.check() == "é" * sum(lengths)

    asyncio.run(run())


# Through the socket


@pytest.mark.django_db(transaction=True)
async def test_a_socket_that_takes_nothing_is_closed_with_a_hint(
    alice: User, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "STUCK_AFTER", 0.05)
    unsent = 0
    browser = Browser("/ws/chat/", await sync_to_async(cookie_of)(alice))
    browser.scope["extensions"] = {UNSENT: lambda: unsent}
    await browser.open()
    await browser.ask(type="generate", prompt="slow one")
    await browser.hear("delta")
    unsent = WINDOW
    await browser.ask(type="ping")
    closing = await browser.closing()
    assert (closing["code"], closing["reason"]) == (1013, STOPPED_READING)
    await asyncio.sleep(0.02)
    assert gateway.followers == 0, "nobody reads for a client that has gone"
    await browser.disconnect()


async def viewer_of(staff: User, unsent: Callable[[], int]) -> Browser:
    viewer = Browser("/ws/scheduler/", await sync_to_async(cookie_of)(staff))
    viewer.scope["extensions"] = {UNSENT: unsent}
    return await viewer.open()


@pytest.mark.django_db(transaction=True)
async def test_a_viewer_that_reads_slowly_gets_what_it_missed_then_a_new_snapshot(
    staff: User, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "MOST_BEHIND", 100)
    gateway.client.statuses = [EngineStatus("engine-1", 1, "ready", False, 0.0, epoch=1)]
    unsent = 0
    viewer = await viewer_of(staff, lambda: unsent)
    assert (await viewer.hear())["type"] == "snapshot"
    unsent = WINDOW
    for n in range(1, 5):
        await gateway.client.records.put([{"n": n, "epoch": 1, "kv": {}}])
        assert await viewer.receive_nothing(0.1)
    unsent = 0
    frames = await viewer.hear_until("snapshot")
    told = [record["n"] for frame in frames[:-1] for record in frame["records"]]
    assert told == list(range(1, 4))[: len(told)]
    assert told
    await viewer.disconnect()


@pytest.mark.django_db(transaction=True)
async def test_a_history_longer_than_there_is_room_for_is_told_whole(
    staff: User, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "RECORDS_BYTES", 400)
    empty = {"rows": [], "finished": [], "preempted": [], "waiting": [], "waiting_total": 0}
    gateway.client.statuses = [EngineStatus("engine-1", 1, "ready", True, 0.0, epoch=1)]
    gateway.client.history += [{"n": n, "epoch": 1, "kv": {}, **empty} for n in range(1, 41)]
    looks = 0

    def unsent() -> int:
        """There is room at every second look: for one frame."""
        nonlocal looks
        looks += 1
        return WINDOW * (looks % 2)

    viewer = await viewer_of(staff, unsent)
    (engine,) = (await viewer.hear())["engines"]
    told = [record["n"] for record in engine["records"]]
    while told[-1] < 40:
        told += [record["n"] for record in (await viewer.hear("iterations", "snapshot"))["records"]]
    assert told == list(range(1, 41))
    await viewer.disconnect()
