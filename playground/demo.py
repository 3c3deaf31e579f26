"""Twelve requests like those of three users at one moment: one asks for a sum, one for an advert, one for a novel.

Knows: what they ask, and that somebody must follow a request to its end. Must not know: HTTP, who may send them.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from itertools import chain
from typing import Any, NamedTuple

from django.contrib.auth.models import User

from inference.config import SamplingParams
from inference.scheduling.request import RequestRefused

log = logging.getLogger("batchscope.demo")


class Kind(NamedTuple):
    """What one of the three users asks. Answers are long enough to be seen and end within half a minute on a laptop."""

    params: SamplingParams
    english: tuple[str, ...]
    chinese: tuple[str, ...]


SUM = Kind(
    SamplingParams(max_tokens=16, temperature=0.0),
    ("1+1=?", "2+3=?", "7+5=?", "12+30=?"),
    ("1+1=？", "2+3=？", "7+5=？", "12+30=？"),
)
ADVERT = Kind(
    SamplingParams(max_tokens=80, min_tokens=40, temperature=0.8),
    (
        "Rewrite this advert so that it sells: Our coffee is fresh and it is not expensive.",
        "Rewrite this advert so that it sells: We repair bicycles on the same day.",
        "Rewrite this advert so that it sells: Our umbrellas do not break in the wind.",
        "Rewrite this advert so that it sells: The bookshop at the corner is open late.",
    ),
    (
        "请把这段广告文案改得更吸引人：我们的咖啡新鲜，价格也不贵。",
        "请把这段广告文案改得更吸引人：我们当天修好自行车。",
        "请把这段广告文案改得更吸引人：我们的雨伞大风也吹不坏。",
        "请把这段广告文案改得更吸引人：街角的书店营业到深夜。",
    ),
)
NOVEL = Kind(
    SamplingParams(max_tokens=400, min_tokens=200, temperature=0.8),
    (
        "Write the first chapter of a novel about a lighthouse keeper who finds a letter.",
        "Write the first chapter of a novel about two sisters on a night train.",
        "Write the first chapter of a novel about a clockmaker in a town without time.",
        "Write the first chapter of a novel about an expedition to a silent island.",
    ),
    (
        "请写一部中篇小说的第一章：守塔人捡到了一封信。",
        "请写一部中篇小说的第一章：夜行列车上的两姐妹。",
        "请写一部中篇小说的第一章：没有时间的小镇和一位钟表匠。",
        "请写一部中篇小说的第一章：寂静之岛的探险队。",
    ),
)
KINDS = (SUM, ADVERT, NOVEL)
REF = "demo"
_following: set[asyncio.Task[None]] = set()  # a loop itself holds its tasks only weakly


async def send(gateway: Any, user: User, language: str) -> list[str]:
    """Submit all twelve as `user`, in turn one of each kind; their ids. They are followed to their ends here, since
    nobody's socket does. Raises RequestRefused where not all are taken; then those that were are cancelled."""
    request_ids: list[str] = []
    try:
        for kind, text in asked(language):
            messages = [{"role": "user", "content": text}]
            [row] = await gateway.submit_all(user, params=kind.params, messages=messages, ref=REF)
            request_ids.append(str(row.pk))
            _start_following(gateway, user, request_ids[-1])
    except RequestRefused:
        for request_id in request_ids:
            await gateway.cancel(user, request_id)
        raise
    return request_ids


def asked(language: str) -> list[tuple[Kind, str]]:
    """What is asked, in order."""
    texts = [[(kind, t) for t in (kind.chinese if language.startswith("zh") else kind.english)] for kind in KINDS]
    return list(chain.from_iterable(zip(*texts, strict=True)))


def _start_following(gateway: Any, user: User, request_id: str) -> None:
    # A context of its own: database work in the view's would be tied to the view, which ends.
    task = asyncio.create_task(_follow(gateway, user, request_id), context=contextvars.Context())
    _following.add(task)
    task.add_done_callback(_following.discard)


async def _follow(gateway: Any, user: User, request_id: str) -> None:
    try:
        async for _ in gateway.follow(user, request_id):
            pass
    except Exception:
        log.exception("demo_failed: request %s is followed no more", request_id)
