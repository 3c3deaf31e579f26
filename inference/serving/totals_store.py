"""Totals in the broker, where the counts of all processes add up: an engine's under its name, the web's as one.

Knows: keys and commands. Must not know: what is counted, how it is shown.

    totals:{engine}   hash: field of the tally -> total, and `model`; expires by itself
    totals            sorted set of engines that have totals
    totals-web        hash, the same of all web processes together
    counted:{process} number of the last increments that were added, so that none are added twice
    web:{process}     what a web process holds now (gauges), expires by itself       webs    sorted set of them
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import orjson

from inference.serving.broker import Broker, ResponseError
from inference.serving.scripts import GROUP
from inference.serving.tally import Increments, Tally

WEB = ""  # in place of an engine's name
TOTALS_KEPT = 30 * 86400  # seconds after the last count
TOTALS_SHOWN = 86400  # seconds after the last count of an engine that has gone
GAUGES_EXPIRY = 3.0  # seconds after which a web process without a word counts for nothing

Totals = dict[str, float]

# KEYS totals, counted. ARGV number, seconds to keep, the model, then pairs: field, increment.
COUNT = """
if tonumber(redis.call('GET', KEYS[2]) or 0) >= tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[2], ARGV[1], 'EX', 86400)
for i = 4, #ARGV, 2 do redis.call('HINCRBYFLOAT', KEYS[1], ARGV[i], ARGV[i + 1]) end
if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], 'model', ARGV[3]) end
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
"""


class TotalsStore:
    """Every method raises one of UNREACHABLE while the broker is away. process: this one's name, unlike any other."""

    def __init__(self, broker: Broker, process: str) -> None:
        self._broker, self._process = broker, process
        self._count = broker.redis.register_script(COUNT)

    async def flush(self, tally: Tally, engine: str = WEB, model: str = "") -> None:
        """Add what the tally holds to the totals."""
        for _ in range(2):  # what another call is about to bring there, and what came since
            if (increments := tally.take()) is not None:
                await self._add(increments, engine, model)
                tally.sent(increments)

    async def _add(self, increments: Increments, engine: str, model: str) -> None:
        args: list[Any] = [increments.number, TOTALS_KEPT, model]
        for field, value in increments.values.items():
            args += (field, value)
        key = self._broker.key
        keys = [key("totals", engine) if engine else key("totals-web"), key("counted", self._process)]
        await self._count(keys=keys, args=args)
        if engine:
            await self._broker.redis.zadd(key("totals"), {engine: time.time()})
            await self._broker.redis.zremrangebyscore(key("totals"), "-inf", time.time() - TOTALS_KEPT)

    async def totals(self, alive: Iterable[str] = ()) -> dict[str, tuple[str, Totals]]:
        """By engine (WEB: of all web processes): its model, and its totals by field. Of engines that are alive, and of
        those that were so lately."""
        key, redis = self._broker.key, self._broker.redis
        found = await redis.zrangebyscore(key("totals"), time.time() - TOTALS_SHOWN, "+inf")
        names = [WEB, *sorted({*alive, *(name.decode() for name in found)})]
        async with redis.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hgetall(key("totals", name) if name else key("totals-web"))
            answers = await pipe.execute()
        return {name: _decoded(answer) for name, answer in zip(names, answers, strict=True)}

    async def put_gauges(self, gauges: dict[str, float]) -> None:
        """What this web process holds now."""
        key = self._broker.key
        async with self._broker.redis.pipeline(transaction=False) as pipe:
            pipe.set(key("web", self._process), orjson.dumps(gauges), px=int(1000 * GAUGES_EXPIRY))
            pipe.zadd(key("webs"), {self._process: time.time()})
            pipe.zremrangebyscore(key("webs"), "-inf", time.time() - 10 * GAUGES_EXPIRY)
            await pipe.execute()

    async def gauges(self) -> list[dict[str, float]]:
        """Of each web process that lives."""
        key, redis = self._broker.key, self._broker.redis
        processes = [name.decode() for name in await redis.zrange(key("webs"), 0, -1)]
        if not processes:
            return []
        found = await redis.mget([key("web", name) for name in processes])
        return [orjson.loads(data) for data in found if data]

    async def unclaimed(self) -> int:
        """Requests that wait for an engine to take them."""
        key, redis = self._broker.key, self._broker.redis
        try:
            taken = (await redis.xpending(key("requests"), GROUP))["pending"]
        except ResponseError:  # no engine was there yet
            taken = 0
        return max(0, await redis.xlen(key("requests")) - taken)


def _decoded(answer: dict[bytes, bytes]) -> tuple[str, Totals]:
    model = answer.pop(b"model", b"").decode()
    return model, {field.decode(): float(value) for field, value in answer.items()}
