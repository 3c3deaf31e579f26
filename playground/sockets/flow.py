"""What a socket has been sent and has not read yet, and what waits meanwhile (R14 of the promises).

Knows: frames of answers, sizes, time. Must not know: ASGI, who asks, where deltas come from.

Two measures bound what is on its way. What the client acknowledges: an `ack` says that it has read that frame and
thereby all before it on this socket, and once it has sent one, at most WINDOW bytes are sent beyond its last. And what
the server has not got rid of (`unsent`): for clients that never acknowledge anything, and for frames that nobody can.
While there is no room, deltas of one request are joined, so that a reader that is slow gets fewer and larger frames;
and where too much waits, whoever brings more waits too. docs/decisions/0022-slow-readers.md has the reasons.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from playground import metrics
from playground.sockets.protocol import DeltaFrame, ServerModel, TokenLogprobs

WINDOW = 256 << 10  # bytes: sent and not acknowledged, and in the server's own memory, each
HELD = 64 << 10  # bytes of frames that wait, roughly; whoever brings more waits
JOINED = 32 << 10  # bytes of a joined frame, roughly
STUCK_AFTER = 30.0  # seconds in which nothing could be sent
PAUSES = (0.05, 0.5)  # seconds between looks at whether there is room: first, most

Send = Callable[[str], Awaitable[None]]


class _Mark(NamedTuple):
    """A frame that can be acknowledged."""

    request_id: str
    seq: int
    size: int


@dataclass(slots=True)
class _Joined:
    """Deltas of one request that wait, as one."""

    first: DeltaFrame
    last: DeltaFrame
    texts: list[str]
    tokens: int
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    size: int = 0

    def add(self, delta: DeltaFrame, size: int) -> None:
        self.last = delta
        self.texts.append(delta.text)
        self.tokens += delta.tokens
        self.logprobs += delta.logprobs or ()
        self.size += size

    def frame(self) -> DeltaFrame:
        if self.first is self.last:
            return self.first
        changes = {"first_seq": self.first.seq, "text": "".join(self.texts), "tokens": self.tokens}
        return self.last.model_copy(update={**changes, "logprobs": self.logprobs or None})


class Flow:
    """Of one socket.  send: writes a frame.  unsent: bytes that the server holds for this client.  stuck: called, once,
    when nothing could be sent for STUCK_AFTER seconds."""

    def __init__(self, send: Send, unsent: Callable[[], int], stuck: Callable[[], Awaitable[None]]) -> None:
        self._send, self._unsent, self._stuck = send, unsent, stuck
        self._acks = False  # whether this client acknowledges anything
        self._marks: deque[_Mark] = deque()
        self._unacknowledged = 0
        self._waiting: dict[str, deque[_Joined | ServerModel]] = {}  # by request, the next to be sent first
        self._held = 0
        self._moved = asyncio.Event()  # something was sent, or acknowledged
        self._sender: asyncio.Task[None] | None = None

    async def put(self, frame: ServerModel, request_id: str) -> None:
        """Send a frame of an answer, or keep it until there is room; it comes after all that this request has waiting.
        Returns when more may be brought."""
        text = frame.frame()
        size = len(text.encode())
        if not self._waiting and self._fits(size):
            await self._write(frame, text, size, request_id)
            return
        self._keep(frame, size, request_id)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send_waiting())
        while self._held >= HELD:
            await self._wait(STUCK_AFTER)

    async def until_room(self) -> None:
        """For frames that nobody acknowledges: return once what the server holds is within bounds."""
        if self.has_room:
            return
        since, pause = time.monotonic(), PAUSES[0]
        while not self.has_room:
            if time.monotonic() - since >= STUCK_AFTER:
                await self._stuck()
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSES[1])

    @property
    def is_busy(self) -> bool:
        """Whether this client has yet to take something."""
        return bool(self._waiting) or self._unsent() > 0

    @property
    def has_room(self) -> bool:
        return self._unsent() < WINDOW

    def acknowledge(self, request_id: str, seq: int) -> None:
        """The client has read that frame, and all before it. What was never sent is no news."""
        self._acks = True
        read = 0
        for place, mark in enumerate(self._marks, 1):
            if mark.request_id == request_id and mark.seq <= seq:
                read = place
        for _ in range(read):
            self._unacknowledged -= self._marks.popleft().size
        if read:
            self._moved.set()

    def forget(self, request_id: str) -> None:
        """Drop what waits of a request: it is about to be sent anew."""
        for item in self._waiting.pop(request_id, ()):
            self._held -= _size(item)
        self._moved.set()

    def close(self) -> None:
        self._waiting.clear()
        self._held = 0
        self._moved.set()
        if self._sender is not None and self._sender is not asyncio.current_task():
            self._sender.cancel()

    def _fits(self, size: int) -> bool:
        return self.has_room and (not self._unacknowledged or self._unacknowledged + size <= WINDOW)

    def _keep(self, frame: ServerModel, size: int, request_id: str) -> None:
        self._held += size
        line = self._waiting.setdefault(request_id, deque())
        if isinstance(frame, DeltaFrame):
            if line and isinstance(last := line[-1], _Joined) and last.size + size <= JOINED:
                last.add(frame, size)
            else:
                line.append(_Joined(frame, frame, [frame.text], frame.tokens, [*(frame.logprobs or ())], size))
        else:
            line.append(frame)

    async def _send_waiting(self) -> None:
        since, pause = time.monotonic(), PAUSES[0]
        while self._waiting:
            request_id, line = next(iter(self._waiting.items()))
            if self._fits(_size(line[0])):
                item = line.popleft()
                self._held -= _size(item)
                del self._waiting[request_id]
                if line:  # to the end: each request in turn
                    self._waiting[request_id] = line
                frame = item.frame() if isinstance(item, _Joined) else item
                text = frame.frame()
                await self._write(frame, text, len(text.encode()), request_id)
                self._moved.set()
                since, pause = time.monotonic(), PAUSES[0]
            elif time.monotonic() - since >= STUCK_AFTER:
                await self._stuck()
                return
            else:
                await self._wait(pause)
                pause = min(2 * pause, PAUSES[1])

    async def _write(self, frame: ServerModel, text: str, size: int, request_id: str) -> None:
        if self._acks and (seq := getattr(frame, "seq", None)) is not None:
            self._marks.append(_Mark(request_id, seq, size))
            self._unacknowledged += size
        if isinstance(frame, DeltaFrame):
            metrics.deltas_sent(1 + frame.seq - (frame.first_seq or frame.seq))
        await self._send(text)

    async def _wait(self, timeout: float) -> None:
        """Until something moves, or for so long."""
        self._moved.clear()
        loop = asyncio.get_running_loop()
        timer = loop.call_later(timeout, self._moved.set)
        try:
            await self._moved.wait()
        finally:
            timer.cancel()


def _size(item: _Joined | ServerModel) -> int:
    return item.size if isinstance(item, _Joined) else len(item.frame())
