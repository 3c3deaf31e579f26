"""From the events of a call to its answer: in one piece, or as server-sent events.

Knows: what an answer says besides its choices: usage, timing, who made it. Must not know: HTTP, the gateway.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import orjson
from django.conf import settings

from inference.serving.client import end_tasks
from inference.serving.messages import Delta, Finish
from playground import metrics
from playground.http.openai.calls import Call
from playground.http.openai.errors import CallError, as_call_error, param_of
from playground.http.openai.shapes import Shape, Token, placed

Event = tuple[int, Delta | Finish]
ALIVE_EVERY = 15.0  # seconds between signs of life in a stream that waits for its first words
DONE = b"data: [DONE]\n\n"
ALIVE = b": waiting\n\n"  # a comment, which clients skip


class Answer:
    """What has come of a call so far."""

    def __init__(self, call: Call, shape: Shape) -> None:
        self._call, self._shape = call, shape
        self._texts: list[list[str]] = [[] for _ in call.rows]
        self._tokens: list[list[Token] | None] = [None for _ in call.rows]  # None: they were not asked for
        self._lengths = [0] * len(call.rows)  # characters
        self._finishes: dict[int, Finish] = {}
        self._head = {
            "id": shape.prefix + call.request_id,
            "object": shape.chunk,
            "created": int(call.rows[0].created_at.timestamp()),
            "model": settings.BATCHSCOPE.model_name,
            "system_fingerprint": fingerprint(),
        }

    # In one piece

    async def whole(self, events: AsyncGenerator[Event]) -> dict[str, Any]:
        """Raises CallError where one of the requests has no answer."""
        async with aclosing(events):
            async for place, event in events:
                if isinstance(event, Finish):
                    self._finished(place, event)
                    shown = None if event.logprobs is None else []  # those it has are of tokens without a text
                else:
                    self._texts[place].append(event.text)
                    shown = self._placed(place, event)
                if shown is not None:
                    self._tokens[place] = [*(self._tokens[place] or ()), *shown]
        return {
            **self._head,
            "object": self._shape.whole,
            "choices": [self._choice(place) for place in range(len(self._call.rows))],
            "usage": self._usage(),
            "timing": self._timing(),
        }

    def _choice(self, place: int) -> dict[str, Any]:
        finish, text = self._finishes[place], "".join(self._texts[place])
        choice = self._shape.choice(place, text, self._tokens[place], finish.finish_reason)
        return {**choice, "timing": finish.receipt} if len(self._call.rows) > 1 else choice

    # In chunks

    async def begin(self, events: AsyncGenerator[Event], within: float) -> asyncio.Task[Event]:
        """The first event, waited for so long. Raises CallError where that is the end already: a status can tell it."""
        begun = asyncio.ensure_future(anext(events))
        try:
            await asyncio.wait({begun}, timeout=within)
            if begun.done() and isinstance(finish := begun.result()[1], Finish):
                _check(finish)
        except BaseException:
            await end_tasks([begun])
            await events.aclose()
            self._call.leave()  # events that nobody began to read have not seen to it
            raise
        return begun

    async def chunks(
        self, events: AsyncGenerator[Event], begun: asyncio.Task[Event], usage: bool
    ) -> AsyncGenerator[bytes]:
        """Server-sent events. begun: the first of `events`, which may be still to come.  usage: whether the last chunk
        has the counts. An error becomes the last event; no [DONE] follows then."""
        async with aclosing(events):
            try:
                for place in range(len(self._call.rows)):
                    if (opening := self._shape.opening(place)) is not None:
                        yield self._chunk(opening, usage)
                while not (await asyncio.wait({begun}, timeout=ALIVE_EVERY))[0]:
                    yield ALIVE
                yield self._event(*begun.result(), usage)
                async for place, event in events:
                    yield self._event(place, event, usage)
                if usage:
                    last = {**self._head, "choices": [], "usage": self._usage(), "timing": self._timing()}
                    yield _framed(last)
                yield DONE
            except Exception as error:
                told = as_call_error(error)
                metrics.refused(told.code)
                yield _framed(told.body())
            finally:
                await end_tasks([begun])  # its generator can't be closed while it runs

    def _event(self, place: int, event: Delta | Finish, usage: bool) -> bytes:
        if isinstance(event, Finish):
            self._finished(place, event)
            return self._chunk(self._shape.closing(place, event.finish_reason), usage, timing=event.receipt)
        metrics.deltas_sent()
        return self._chunk(self._shape.piece(place, event.text, self._placed(place, event)), usage)

    def _chunk(self, choice: dict[str, Any], usage: bool, **more: Any) -> bytes:
        told = {"usage": None} if usage else {}
        return _framed({**self._head, "choices": [choice], **told, **more})

    # Both

    def _placed(self, place: int, event: Delta) -> list[Token] | None:
        tokens = placed(event.logprobs, event.text, self._lengths[place])
        self._lengths[place] += len(event.text)
        return tokens

    def _finished(self, place: int, finish: Finish) -> None:
        """Raises CallError where it is not the end of an answer."""
        _check(finish)
        self._finishes[place] = finish

    def _usage(self) -> dict[str, Any]:
        """A prompt counts once, however many answers it has."""
        first = [self._finishes[place] for place in range(0, len(self._call.rows), self._call.n)]
        prompt = sum(finish.prompt_tokens for finish in first)
        answers = sum(finish.completion_tokens for finish in self._finishes.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": answers,
            "total_tokens": prompt + answers,
            "prompt_tokens_details": {"cached_tokens": sum(finish.cached_tokens for finish in first)},
        }

    def _timing(self) -> dict[str, Any]:
        """The receipt of the request that took longest."""
        return max(
            (finish.receipt for finish in self._finishes.values()), key=lambda receipt: receipt.get("total", 0.0)
        )


def _check(finish: Finish) -> None:
    if finish.finish_reason == "error":
        param = param_of(finish.error_message) if finish.error_code == "bad_params" else None
        raise CallError(finish.error_code, finish.error_message, param=param)
    if finish.finish_reason == "expired":
        raise CallError("expired", finish.error_message or "the request took longer than it may")


def fingerprint() -> str:
    """Names what answers depend on besides a request: the model and how it is computed."""
    config = settings.BATCHSCOPE
    named = f"{config.model_name} {config.dtype} {config.device}"
    return "fp_" + hashlib.sha256(named.encode()).hexdigest()[:10]


def _framed(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
