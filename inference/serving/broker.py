"""The broker's keys and the commands that both sides use; broker_web.py and broker_engine.py have the rest.

Knows: streams, connections, heartbeats. Must not know: torch, Django, threads, what an engine does with a request.
What may be sent through it is in messages.py; the atomic steps are in scripts.py.

Keys, all under one prefix:
    requests          stream, consumer group `engines`: requests to be claimed
    out:{id}          a request's output log (see scripts.py); the truth about its answer
    feed              stream, one entry a step: a live copy of what went into the logs, capped
    cancelled:{id}    flag: cancel was asked for      control    stream: the same as an event, and what staff asks of an
                                                                 engine, by its name
    engine:{consumer} heartbeat, expires by itself    engines    sorted set of consumers seen
    epoch:{engine}    the newest one that was given out to a process of that engine
    ledger:{engine}   stream of iteration records, capped
    ledger-segment:{engine}:{epoch}:{first}   older ones, compressed (see segments.py), expire by themselves
    ledger-segments:{engine}                  sorted set of them by when they were written
    ledgers           sorted set of engines that have written segments
    followers:{id}    how many sockets follow, over all web processes
    totals:{engine}, totals-web, web:{process}   what was counted and what is held now; totals_store.py has more
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from inference.serving.logs import Log
from inference.serving.messages import EngineStatus
from inference.serving.segments import SegmentInfo

PREFIX = "batchscope:"
FEED_LENGTH = 2000  # steps; a follower that lags further reads the log instead
LEDGER_LENGTH = 1000
SEGMENT_KEPT = 86400  # seconds at most
LOG_KEPT = 3600  # seconds after the finish
HEARTBEAT_EXPIRY = 3.0  # seconds without a heartbeat until others may take a worker's requests
WAIT_MS = 1000  # a reader waits so long on the server, then asks again
COMMAND_TIMEOUT = 5.0  # more than a reader waits, so a connection that died without a word is noticed too
# What a caller sees while the broker is away; the same call works again once it is back.
UNREACHABLE = (ConnectionError, TimeoutError, OSError)

__all__ = ["UNREACHABLE", "Broker", "ResponseError", "end_tasks"]


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their end. More than once where need be: before Python 3.12 `wait_for`, which redis-py
    uses, swallows a cancellation that comes together with its result."""
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.1)


def connect(url: str) -> Redis:
    """A client with a pool: a read that waits holds a connection of its own, so it never blocks a command."""
    return Redis.from_url(
        url,
        protocol=2,
        socket_timeout=COMMAND_TIMEOUT,
        socket_connect_timeout=COMMAND_TIMEOUT,
        # One more try mends a connection that went stale; a broker that is away is reported at once.
        retry=Retry(ConstantBackoff(0.02), 1),
    )


class Broker:
    """Commands on one broker. Every method raises one of UNREACHABLE while the broker is away."""

    def __init__(self, url: str, *, prefix: str = PREFIX) -> None:
        self.redis: Any = connect(url)  # redis-py types its answers for all protocols at once, which is of no use
        self._prefix = prefix

    def key(self, *parts: str) -> str:
        return self._prefix + ":".join(parts)

    async def close(self) -> None:
        await self.redis.aclose()

    async def log(self, request_id: str) -> Log:
        return (await self.log_part(request_id))[0]

    async def log_part(self, request_id: str, after: bytes = b"", count: int | None = None) -> tuple[Log, bytes, bool]:
        """Of a log, `count` entries at most, after the one with that id. And the id of the last of them, and whether
        there may be more."""
        start = b"(" + after if after else "-"
        entries = await self.redis.xrange(self.key("out", request_id), min=start, count=count)
        part = Log.of((entry_id, [part for pair in fields.items() for part in pair]) for entry_id, fields in entries)
        return part, entries[-1][0] if entries else b"", len(entries) == count

    async def beat(self, consumer: str, status: EngineStatus, expiry: float = HEARTBEAT_EXPIRY) -> None:
        async with self.redis.pipeline(transaction=False) as pipe:
            pipe.set(self.key("engine", consumer), status.encode(), px=int(expiry * 1000))
            pipe.zadd(self.key("engines"), {consumer: time.time()})
            pipe.zremrangebyscore(self.key("engines"), "-inf", time.time() - 600)
            pipe.expire(self.key("ledger", status.name), 600)
            await pipe.execute()

    async def stop_beating(self, consumer: str) -> None:
        """Say that this consumer is gone, so that others take its requests at once."""
        async with self.redis.pipeline(transaction=False) as pipe:
            pipe.delete(self.key("engine", consumer))
            pipe.zrem(self.key("engines"), consumer)
            await pipe.execute()

    async def statuses(self) -> dict[str, EngineStatus]:
        """Statuses of all consumers that have a heartbeat."""
        consumers = [name.decode() for name in await self.redis.zrange(self.key("engines"), 0, -1)]
        if not consumers:
            return {}
        found = await self.redis.mget([self.key("engine", name) for name in consumers])
        return {name: EngineStatus.decode(data) for name, data in zip(consumers, found, strict=True) if data}

    # The ledger

    async def newest_records(self, engine: str, count: int) -> list[bytes]:
        """The newest `count` iteration records, newest last."""
        entries = await self.redis.xrevrange(self.key("ledger", engine), count=count)
        return [fields[b"record"] for _, fields in reversed(entries)]

    async def ledger_ends(self, engine: str) -> list[bytes]:
        """The oldest and the newest record of the stream; nothing where it is empty."""
        async with self.redis.pipeline(transaction=True) as pipe:
            pipe.xrange(self.key("ledger", engine), count=1)
            pipe.xrevrange(self.key("ledger", engine), count=1)
            return [fields[b"record"] for entries in await pipe.execute() for _, fields in entries]

    async def ledger_engines(self) -> list[str]:
        """Engines that have records here, or a heartbeat."""
        alive = {status.name for status in (await self.statuses()).values()}
        oldest = time.time() - SEGMENT_KEPT
        return sorted(
            {*alive, *(n.decode() for n in await self.redis.zrangebyscore(self.key("ledgers"), oldest, "+inf"))}
        )

    async def segments(self, engine: str) -> list[SegmentInfo]:
        """Those that are kept here, oldest first."""
        oldest = time.time() - SEGMENT_KEPT
        members = await self.redis.zrangebyscore(self.key("ledger-segments", engine), oldest, "+inf")
        return sorted(SegmentInfo(*map(int, member.split(b":"))) for member in members)

    async def segment(self, engine: str, info: SegmentInfo) -> bytes | None:
        """None where it is not kept any more."""
        return await self.redis.get(self.segment_key(engine, info))

    def segment_key(self, engine: str, info: SegmentInfo) -> str:
        return self.key("ledger-segment", engine, str(info.epoch), str(info.first))

    async def _end_of(self, stream: str) -> str:
        """Id of a stream's newest entry: where a reader of what is new starts."""
        entries = await self.redis.xrevrange(stream, count=1)
        return entries[0][0].decode() if entries else "0-0"
