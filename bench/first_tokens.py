"""`python -m bench.first_tokens`: time to first token, as clients saw it and as the receipts tell it.

    python -m bench.first_tokens [--model MODEL] [--bursts N] [--streams N]

Bursts of questions go through `manage.py serve`, each on a socket of its own, all sent at once. A client counts from
before it sends to when it has its first delta; the receipt's `ttft` from when the server has read the question to when
it has handed that delta to the socket.

Knows: the socket's protocol. Must not know: the server's inside.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from typing import Any, NamedTuple

from bench.service import Question, questions, serving, sign_in


class FirstToken(NamedTuple):
    """ms."""

    client: float
    receipt: float


async def burst(address: str, cookies: str, asked: list[Question]) -> list[FirstToken]:
    """Raises RuntimeError where an answer fails."""
    import websockets

    async def connect() -> Any:
        return await websockets.connect(
            f"ws://{address}/ws/chat/",
            origin=websockets.Origin(f"http://{address}"),
            additional_headers={"Cookie": cookies},
            max_size=None,
        )

    connections = [await connect() for _ in asked]
    try:
        return await asyncio.gather(*(_answer(c, *question) for c, question in zip(connections, asked, strict=True)))
    finally:
        for connection in connections:
            await connection.close()


async def _answer(connection: Any, text: str, wanted: int) -> FirstToken:
    params = {"max_tokens": wanted, "temperature": 0.0, "ignore_eos": True}
    begun, first = time.perf_counter(), 0.0
    await connection.send(json.dumps({"type": "generate", "prompt": text, "params": params}))
    async for frame in connection:
        message = json.loads(frame)
        if message["type"] == "error":
            raise RuntimeError(f"the service refused a question of the benchmark: {message['message']}")
        if message["type"] == "delta" and not first:
            first = time.perf_counter()
        if message["type"] == "finished":
            return FirstToken(1000 * (first - begun), message["receipt"]["details"]["ttft"])
    raise RuntimeError("the socket closed before the answer's end")


def report(found: list[FirstToken]) -> str:
    behind = sorted(one.client - one.receipt for one in found)
    late = behind[int(0.95 * (len(behind) - 1))]
    return "\n".join(
        [
            "| answers | client's median ms | receipt's median ms | client later: median ms | p95 | most |",
            "| --- | --- | --- | --- | --- | --- |",
            f"| {len(found)} | {statistics.median(one.client for one in found):.0f} "
            f"| {statistics.median(one.receipt for one in found):.0f} "
            f"| {statistics.median(behind):.1f} | {late:.1f} | {behind[-1]:.1f} |",
        ]
    )


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.first_tokens", description=__doc__.splitlines()[0])
    options.add_argument("--model", default="smollm2", help="as BATCHSCOPE_MODEL")
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--bursts", type=int, default=4)
    options.add_argument("--streams", type=int, default=16, help="of a burst")
    given = options.parse_args()
    found: list[FirstToken] = []
    with serving(given.model, given.dtype) as (address, link, _):
        cookies = sign_in(link)
        asyncio.run(burst(address, cookies, questions(2, 99)))
        for seed in range(given.bursts):
            asked = [(text, min(wanted, 40)) for text, wanted in questions(given.streams, seed)]
            found += asyncio.run(burst(address, cookies, asked))
    print(report(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
