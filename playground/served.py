"""What is served, as far as a client must know it: how long a request may be.

Knows: what engines tell of themselves. Must not know: HTTP, sockets, models.
"""

from __future__ import annotations

import asyncio

from django.conf import settings

from inference.serving.client import UNREACHABLE, EngineClient

REMEMBERED = 5.0  # seconds in which engines are not asked again
ANSWER_WITHIN = 1.0  # seconds for the broker to tell


async def longest_request(client: EngineClient) -> int | None:
    """Tokens of prompt and answer together that every engine takes. None: no engine tells, and no setting."""
    try:
        async with asyncio.timeout(ANSWER_WITHIN):
            engines = await client.engines(REMEMBERED)
    except UNREACHABLE:  # a timeout is one of them
        engines = []
    told = [longest for engine in engines if (longest := engine.settings.get("max_model_len"))]
    return min(told, default=settings.BATCHSCOPE.max_model_len)
