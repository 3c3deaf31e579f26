"""An engine's commands on the broker: take requests, claim logs, write them, hear of cancels and of what staff asks.

Knows: keys and scripts. Must not know: torch, threads, what an engine does with a request.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import orjson

from inference.serving import scripts
from inference.serving.broker import (
    FEED_LENGTH,
    LEDGER_LENGTH,
    LOG_KEPT,
    PREFIX,
    SEGMENT_KEPT,
    WAIT_MS,
    Broker,
    ResponseError,
)
from inference.serving.logs import Claim, ClaimResult, Log, Outgoing
from inference.serving.messages import Finish, Queued
from inference.serving.segments import SegmentInfo

_NO_PROMPTS: Mapping[str, int] = MappingProxyType({})
EPOCH_KEPT = 30 * 86400  # seconds; by then the clock is past it


class NoGroup(Exception):
    """There is no consumer group: the broker is new, or it has lost its state."""


@contextmanager
def _no_group() -> Generator[None]:
    try:
        yield
    except ResponseError as error:
        if "NOGROUP" in str(error) or "no such key" in str(error):
            raise NoGroup from None
        raise


class EngineBroker(Broker):
    def __init__(self, url: str, *, prefix: str = PREFIX) -> None:
        super().__init__(url, prefix=prefix)
        self._claim = self.redis.register_script(scripts.CLAIM)
        self._publish = self.redis.register_script(scripts.PUBLISH)
        self._release = self.redis.register_script(scripts.RELEASE)
        self._take_over = self.redis.register_script(scripts.TAKE_OVER)
        self._next_epoch = self.redis.register_script(scripts.NEXT_EPOCH)

    async def next_epoch(self, engine: str, least: int) -> int:
        """For a process of that engine that starts: `least`, or more where one before it had that. From now on the
        ledger knows the engine: one that is killed before it has closed a segment has its records in the stream."""
        ledgers = self.key("ledgers")
        await self.redis.zadd(ledgers, {engine: time.time()})
        await self.redis.expire(ledgers, SEGMENT_KEPT)
        return await self._next_epoch(keys=[self.key("epoch", engine)], args=[least, EPOCH_KEPT])

    async def keep_epoch(self, engine: str, epoch: int) -> None:
        """Tell a broker that lost its state which one was given out."""
        await self.redis.set(self.key("epoch", engine), epoch, ex=EPOCH_KEPT, nx=True)

    async def create_group(self) -> None:
        try:
            await self.redis.xgroup_create(self.key("requests"), scripts.GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def read_requests(self, consumer: str, count: int, *, new: bool = True, wait_ms: int = WAIT_MS) -> list[Any]:
        """Requests that fall to this consumer: new ones (waiting for some), or those already its own."""
        block = wait_ms if new else None
        stream = {self.key("requests"): ">" if new else "0"}
        with _no_group():
            answer = await self.redis.xreadgroup(scripts.GROUP, consumer, stream, count=count, block=block)
        return [(i, fields[b"body"]) for _, entries in answer or () for i, fields in entries if fields]

    async def take_over(self, consumer: str, count: int) -> list[Any]:
        """Requests of consumers that have no heartbeat, from now on this consumer's."""
        with _no_group():
            taken = await self._take_over(keys=[self.key("requests"), self.key("engine:")], args=[consumer, count])
        return [(entry_id, fields[fields.index(b"body") + 1]) for entry_id, fields in taken if fields]

    async def claim(self, request_id: str, token: str, consumer: str) -> ClaimResult | None:
        """Claim a request under a new epoch, with its log so far. None where it is finished or its log is gone."""
        keys = [self.key("out", request_id), self.key("cancelled", request_id)]
        answer = await self._claim(keys=keys, args=[token, consumer])
        if answer[0] != b"claimed":
            return None
        _, epoch, attempts, cancelled, log = answer
        return ClaimResult(Claim(request_id, epoch, token), attempts, bool(cancelled), Log.of(log))

    async def holds(self, claim: Claim) -> bool:
        """Whether that claim stands in the log (a later one may stand after it; the log's owner is the last)."""
        marker = f"{claim.epoch}-0"
        entries = await self.redis.xrange(self.key("out", claim.request_id), marker, marker)
        return bool(entries) and entries[0][1].get(b"claim") == claim.token.encode()

    async def forget_request(self, entry_id: bytes) -> None:
        """Take an entry out of the queue that has nothing to run any more."""
        async with self.redis.pipeline(transaction=True) as pipe:
            pipe.xack(self.key("requests"), scripts.GROUP, entry_id)
            pipe.xdel(self.key("requests"), entry_id)
            await pipe.execute()

    async def publish(
        self, items: Sequence[Outgoing], engine: str = "", prompt_tokens: Mapping[str, int] = _NO_PROMPTS
    ) -> set[str]:
        """Append events to their logs and to the feed, and count their tokens in that engine's totals, all in one step.
        Returns tokens of claims that hold no more.

        prompt_tokens: of requests without a word so far, by id; counted with their first event.
        """
        args: list[Any] = [FEED_LENGTH, LOG_KEPT, orjson.dumps(_unusual_tokens(items, prompt_tokens))]
        for item in items:
            claim, event = item.claim, item.event
            kind = "finish" if isinstance(event, Finish) else "delta"
            args += (kind, claim.request_id, claim.epoch, claim.token, event.seq, event.encode())
        keys = [self.key(name) for name in ("feed", "requests", "out:", "cancelled:", "totals:" + engine)]
        return {token.decode() for token in await self._publish(keys=keys, args=args)}

    async def tell(self, news: Sequence[Queued]) -> None:
        """Put news for those who wait into the feed, and nowhere else."""
        events = b"[" + b",".join(one.encode() for one in news) + b"]"
        await self.redis.xadd(self.key("feed"), {"events": events}, maxlen=FEED_LENGTH, approximate=True)

    async def release(self, claim: Claim) -> None:
        """Give a claim back: whoever claims next goes on, and this one does not count as a failed attempt."""
        await self._release(keys=[self.key("out", claim.request_id)], args=[claim.epoch, claim.token])

    async def control_end(self) -> str:
        return await self._end_of(self.key("control"))

    async def read_control(self, after: str, wait_ms: int = WAIT_MS) -> tuple[str, list[str], list[bytes]]:
        """After that control entry: the id to go on from, requests that are to be cancelled, what is asked of engines
        (encoded, and perhaps not well)."""
        cancels: list[str] = []
        controls: list[bytes] = []
        for _, entries in await self.redis.xread({self.key("control"): after}, block=wait_ms) or ():
            for entry_id, fields in entries:
                after = entry_id.decode()
                if b"cancel" in fields:
                    cancels.append(fields[b"cancel"].decode())
                elif b"control" in fields:
                    controls.append(fields[b"control"])
        return after, cancels, controls

    async def cancelled_among(self, request_ids: Sequence[str]) -> list[str]:
        if not request_ids:
            return []
        flags = await self.redis.mget([self.key("cancelled", request_id) for request_id in request_ids])
        return [request_id for request_id, flag in zip(request_ids, flags, strict=True) if flag]

    async def append_ledger(self, engine: str, records: Sequence[bytes]) -> None:
        async with self.redis.pipeline(transaction=False) as pipe:
            for record in records:
                pipe.xadd(self.key("ledger", engine), {"record": record}, maxlen=LEDGER_LENGTH)
            await pipe.execute()

    async def keep_segment(self, engine: str, info: SegmentInfo, data: bytes, iterations: int, memory: int) -> None:
        """Keep a segment of the ledger, and of this engine's older ones as many as `iterations` and bytes allow."""
        now, index, ledgers = time.time(), self.key("ledger-segments", engine), self.key("ledgers")
        async with self.redis.pipeline(transaction=True) as pipe:
            pipe.set(self.segment_key(engine, info), data, ex=SEGMENT_KEPT)
            pipe.zadd(index, {_member(info): now})
            pipe.zadd(ledgers, {engine: now})
            for key in (index, ledgers):
                pipe.zremrangebyscore(key, "-inf", now - SEGMENT_KEPT)
                pipe.expire(key, SEGMENT_KEPT)
            await pipe.execute()
        for kept in reversed(await self.segments(engine)):
            iterations -= kept.last - kept.first + 1
            memory -= kept.size
            if iterations < 0 or memory < 0:
                await self._drop_segment(engine, kept)

    async def _drop_segment(self, engine: str, info: SegmentInfo) -> None:
        async with self.redis.pipeline(transaction=True) as pipe:
            pipe.delete(self.segment_key(engine, info))
            pipe.zrem(self.key("ledger-segments", engine), _member(info))
            await pipe.execute()


def _unusual_tokens(items: Sequence[Outgoing], of_wordless: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Tokens of prompt and answer, by place, of events that bring anything but one token of an answer. A prompt comes
    with its request's first event."""
    unusual = {}
    for place, item in enumerate(items):
        event, prompt = item.event, 0
        if event.seq == 1:
            prompt = event.prompt_tokens if isinstance(event, Finish) else of_wordless.get(event.request_id, 0)
        if prompt or len(event.token_ids) != 1:
            unusual[str(place)] = prompt, len(event.token_ids)
    return unusual


def _member(info: SegmentInfo) -> str:
    return ":".join(map(str, info))
