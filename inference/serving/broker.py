"""The broker's keys and commands, in one place: everything that web and engine processes write to Redis or Valkey.

Knows: streams, scripts, connections. Must not know: torch, Django, threads, what an engine does with a request.
What may be sent through it is in messages.py; the atomic steps are in scripts.py.

Keys, all under one prefix:
    requests          stream, consumer group `engines`: requests to be claimed
    out:{id}          a request's output log (see scripts.py); the truth about its answer
    feed              stream, one entry a step: a live copy of what went into the logs, capped
    cancelled:{id}    flag: cancel was asked for      control    stream: the same as an event
    engine:{consumer} heartbeat, expires by itself    engines    sorted set of consumers seen
    ledger:{engine}   stream of iteration records, capped
    followers:{id}    how many sockets follow, over all web processes
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from inference.serving import scripts
from inference.serving.messages import Delta, EngineStatus, Finish, Submission

PREFIX = "batchscope:"
FEED_LENGTH = 2000  # steps; a follower that lags further reads the log instead
LEDGER_LENGTH = 1000
LOG_KEPT = 3600  # seconds after the finish
HEARTBEAT_EXPIRY = 3.0  # seconds without a heartbeat until others may take a worker's requests
WAIT_MS = 1000  # a reader waits so long on the server, then asks again
COMMAND_TIMEOUT = 5.0  # more than a reader waits, so a connection that died without a word is noticed too
# What a caller sees while the broker is away; the same call works again once it is back.
UNREACHABLE = (ConnectionError, TimeoutError, OSError)

Event = Delta | Finish
__all__ = ["UNREACHABLE", "Broker", "Claim", "ClaimResult", "Event", "Log", "NoGroup", "Outgoing", "ResponseError"]


class NoGroup(Exception):
    """There is no consumer group: the broker is new, or it has lost its state."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to write a request's log, until somebody claims it anew. `token` names this claim and no other."""

    request_id: str
    epoch: int
    token: str


@dataclass(frozen=True, slots=True)
class ClaimResult:
    claim: Claim
    attempts: int  # this one included
    cancelled: bool
    log: Log


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An event on its way into the log, with the claim under which it may be written."""

    claim: Claim
    event: Event


@dataclass(slots=True)
class Log:
    """A request's log as read from the broker. `exists` is False where the broker has (or has kept) none."""

    exists: bool = False
    claims: int = 0  # how many there were; the answer's attempts
    deltas: list[Delta] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def next_seq(self) -> int:
        return self.deltas[-1].seq + 1 if self.deltas else 1

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def token_ids(self) -> list[int]:
        """All ids of the answer so far, those of the finish left out."""
        return [token_id for delta in self.deltas for token_id in delta.token_ids]

    @classmethod
    def of(cls, entries: Iterable[tuple[bytes, Sequence[bytes]]]) -> Log:
        """From entries as a script returns them: (id, [name, value, ...])."""
        log = cls()
        for _, fields in entries:
            log.exists = True
            kind, value = fields[0], fields[1]
            if kind == b"delta":
                log.deltas.append(Delta.decode(value))
            elif kind == b"finish":
                log.finish = Finish.decode(value)
            elif kind == b"claim":
                log.claims += 1
        return log


def decode_events(data: bytes) -> list[Event]:
    """The events of one feed entry."""
    return [Finish.of(item) if "finish_reason" in item else Delta.of(item) for item in orjson.loads(data)]


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


@contextmanager
def _no_group() -> Iterator[None]:
    try:
        yield
    except ResponseError as error:
        if "NOGROUP" in str(error) or "no such key" in str(error):
            raise NoGroup from None
        raise


class Broker:
    """Commands on one broker. Every method raises one of UNREACHABLE while the broker is away."""

    def __init__(self, url: str, *, prefix: str = PREFIX) -> None:
        self.redis = connect(url)
        self._prefix = prefix
        register = self.redis.register_script
        self._submit = register(scripts.SUBMIT)
        self._cancel = register(scripts.CANCEL)
        self._claim = register(scripts.CLAIM)
        self._publish = register(scripts.PUBLISH)
        self._release = register(scripts.RELEASE)
        self._take_over = register(scripts.TAKE_OVER)

    async def close(self) -> None:
        await self.redis.aclose()

    def key(self, *parts: str) -> str:
        return self._prefix + ":".join(parts)

    # The web's side

    async def submit(self, submission: Submission) -> bool:
        """Put a request into the queue. False where it was there already: submitting twice is submitting once."""
        keys = [self.key("out", submission.request_id), self.key("requests")]
        return bool(await self._submit(keys=keys, args=[submission.request_id, submission.encode()]))

    async def cancel(self, request_id: str) -> str:
        """"missing", "finished" (also: finished by this, where nobody had claimed it), or "asked"."""
        finish = Finish(request_id, 1, "cancelled", finished_at=time.time())
        keys = [self.key("out", request_id), *map(self.key, ("requests", "feed", "control"))]
        keys.append(self.key("cancelled", request_id))
        return (await self._cancel(keys=keys, args=[request_id, finish.encode(), FEED_LENGTH, LOG_KEPT])).decode()

    async def log(self, request_id: str) -> Log:
        entries = await self.redis.xrange(self.key("out", request_id))
        return Log.of((entry_id, [part for pair in fields.items() for part in pair]) for entry_id, fields in entries)

    async def log_ends(self, request_ids: Sequence[str]) -> dict[str, str]:
        """For each request the kind of its log's last entry: "entry", "claim", "delta", "finish", "release" or ""."""
        async with self.redis.pipeline(transaction=False) as pipe:
            for request_id in request_ids:
                pipe.xrevrange(self.key("out", request_id), count=1)
            answers = await pipe.execute()
        return {
            request_id: next(iter(entries[0][1])).decode() if entries else ""
            for request_id, entries in zip(request_ids, answers, strict=True)
        }

    async def follow(self, request_id: str, change: int) -> int:
        """Count a follower in (+1) or out (-1), over all web processes; how many there are now."""
        key = self.key("followers", request_id)
        async with self.redis.pipeline(transaction=False) as pipe:
            pipe.incrby(key, change)
            pipe.expire(key, LOG_KEPT)
            count, _ = await pipe.execute()
        return count

    async def feed_end(self) -> str:
        return await self._end_of(self.key("feed"))

    async def read_feed(self, after: str, wait_ms: int = WAIT_MS) -> tuple[str, list[Event]]:
        """Events after that feed entry, waiting for some; the id to go on from."""
        events: list[Event] = []
        for _, entries in await self.redis.xread({self.key("feed"): after}, count=64, block=wait_ms) or ():
            for entry_id, fields in entries:
                after = entry_id.decode()
                events += decode_events(fields[b"events"])
        return after, events

    # The engine's side

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

    async def publish(self, items: Sequence[Outgoing]) -> set[str]:
        """Append events to their logs and to the feed, all in one step. Returns tokens of claims that hold no more."""
        args: list[Any] = [FEED_LENGTH, LOG_KEPT]
        for item in items:
            claim, event = item.claim, item.event
            kind = "finish" if isinstance(event, Finish) else "delta"
            args += (kind, claim.request_id, claim.epoch, claim.token, event.seq, event.encode())
        keys = [self.key("feed"), self.key("requests"), self.key("out:"), self.key("cancelled:")]
        return {token.decode() for token in await self._publish(keys=keys, args=args)}

    async def release(self, claim: Claim) -> None:
        """Give a claim back: whoever claims next goes on, and this one does not count as a failed attempt."""
        await self._release(keys=[self.key("out", claim.request_id)], args=[claim.epoch, claim.token])

    async def control_end(self) -> str:
        return await self._end_of(self.key("control"))

    async def read_control(self, after: str, wait_ms: int = WAIT_MS) -> tuple[str, list[str]]:
        """Ids of requests that are to be cancelled, after that control entry; the id to go on from."""
        ids: list[str] = []
        for _, entries in await self.redis.xread({self.key("control"): after}, block=wait_ms) or ():
            for entry_id, fields in entries:
                after = entry_id.decode()
                ids.append(fields[b"cancel"].decode())
        return after, ids

    async def cancelled_among(self, request_ids: Sequence[str]) -> list[str]:
        if not request_ids:
            return []
        flags = await self.redis.mget([self.key("cancelled", request_id) for request_id in request_ids])
        return [request_id for request_id, flag in zip(request_ids, flags, strict=True) if flag]

    # Engines and their ledgers

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

    async def append_ledger(self, engine: str, records: Sequence[bytes]) -> None:
        async with self.redis.pipeline(transaction=False) as pipe:
            for record in records:
                pipe.xadd(self.key("ledger", engine), {"record": record}, maxlen=LEDGER_LENGTH)
            await pipe.execute()

    async def newest_records(self, engine: str, count: int) -> list[bytes]:
        """The newest `count` iteration records, newest last."""
        entries = await self.redis.xrevrange(self.key("ledger", engine), count=count)
        return [fields[b"record"] for _, fields in reversed(entries)]

    async def ledger_end(self, engine: str) -> str:
        return await self._end_of(self.key("ledger", engine))

    async def _end_of(self, stream: str) -> str:
        """Id of a stream's newest entry: where a reader of what is new starts."""
        entries = await self.redis.xrevrange(stream, count=1)
        return entries[0][0].decode() if entries else "0-0"

    async def read_ledgers(self, after: dict[str, str], wait_ms: int = WAIT_MS) -> dict[str, tuple[str, list[bytes]]]:
        """New records by engine, after the given ids, waiting for some."""
        keys = {self.key("ledger", engine): engine for engine in after}
        answer = await self.redis.xread({key: after[keys[key]] for key in keys}, count=256, block=wait_ms)
        return {
            keys[key.decode()]: (entries[-1][0].decode(), [fields[b"record"] for _, fields in entries])
            for key, entries in answer or ()
        }
