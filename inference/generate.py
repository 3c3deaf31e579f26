"""Answers to a list of prompts from an engine that has nothing else to do.

Knows: which outputs belong to which prompt. Must not know: how a step is made, how requests leave the engine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from inference.config import ParameterError, SamplingParams
from inference.live import LiveRequest
from inference.scheduling.outputs import Output, RequestFinish

if TYPE_CHECKING:
    from inference.engine import Engine

Prompts = Sequence[str] | Sequence[Sequence[int]]


def generate(
    engine: Engine,
    live: Mapping[str, LiveRequest],
    prompts: Prompts,
    params: SamplingParams | Sequence[SamplingParams] | None,
) -> list[Output]:
    """See Engine.generate. live: the engine's requests, by id; there are none yet."""
    each = list(params) if isinstance(params, Sequence) else [params or SamplingParams()] * len(prompts)
    if len(each) != len(prompts):
        raise ParameterError(f"there are {len(prompts)} prompts and {len(each)} parameters; give one, or one each")
    names = [
        [engine.add_request(prompt, sibling) for sibling in one.siblings()]
        for prompt, one in zip(prompts, each, strict=True)
    ]
    asked = dict(live)
    outputs = {finish.request_id: asked[finish.request_id].output(finish) for finish in _until_idle(engine)}
    families = [[outputs[name] for name in family] for family in names]
    return [replace(first, others=others) if others else first for first, *others in families]


def _until_idle(engine: Engine) -> Iterator[RequestFinish]:
    while engine.has_work:
        time.sleep(engine.seconds_to_next_step())
        yield from engine.step().finishes
