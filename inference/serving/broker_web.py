"""The web's commands on the broker: queue and cancel requests, read logs, the feed and the ledgers.

Knows: keys and scripts. Must not know: Django, sockets, who reads what is followed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from inference.serving import scripts
from inference.serving.broker import FEED_LENGTH, LOG_KEPT, PREFIX, WAIT_MS, Broker
from inference.serving.logs import News, decode_events
from inference.serving.messages import Control, Finish, Submission


class WebBroker(Broker):
    def __init__(self, url: str, *, prefix: str = PREFIX) -> None:
        super().__init__(url, prefix=prefix)
        self._submit = self.redis.register_script(scripts.SUBMIT)
        self._cancel = self.redis.register_script(scripts.CANCEL)

    async def submit(self, submission: Submission) -> bool:
        """Put a request into the queue. False where it was there already: submitting twice is submitting once."""
        keys = [self.key("out", submission.request_id), self.key("requests")]
        return bool(await self._submit(keys=keys, args=[submission.request_id, submission.encode()]))

    async def cancel(self, request_id: str) -> str:
        """ "missing", "finished" (also: finished by this, where nobody had claimed it), or "asked"."""
        finish = Finish(request_id, 1, "cancelled", finished_at=time.time())
        keys = [self.key("out", request_id), *map(self.key, ("requests", "feed", "control"))]
        keys.append(self.key("cancelled", request_id))
        return (await self._cancel(keys=keys, args=[request_id, finish.encode(), FEED_LENGTH, LOG_KEPT])).decode()

    async def control(self, control: Control) -> None:
        """Tell the engines what is asked of one of them. One that comes later does not hear of it."""
        await self.redis.xadd(self.key("control"), {"control": control.encode()}, maxlen=1000, approximate=True)

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

    async def read_feed(self, after: str, wait_ms: int = WAIT_MS) -> tuple[str, list[News]]:
        """Events after that feed entry, waiting for some; the id to go on from."""
        events: list[News] = []
        for _, entries in await self.redis.xread({self.key("feed"): after}, count=64, block=wait_ms) or ():
            for entry_id, fields in entries:
                after = entry_id.decode()
                events += decode_events(fields[b"events"])
        return after, events

    async def ledger_end(self, engine: str) -> str:
        return await self._end_of(self.key("ledger", engine))

    async def read_ledgers(self, after: dict[str, str], count: int) -> dict[str, tuple[str, list[bytes]]]:
        """Records by engine after the given ids, at most `count` of each; where to go on. Waits for none."""
        keys = {self.key("ledger", engine): engine for engine in after}
        answer = await self.redis.xread({key: after[keys[key]] for key in keys}, count=count)
        return {
            keys[key.decode()]: (entries[-1][0].decode(), [fields[b"record"] for _, fields in entries])
            for key, entries in answer or ()
        }
