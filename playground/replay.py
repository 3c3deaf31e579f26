"""A request run again: the same prompt, parameters and seed must give the same answer, whoever shares the batch.

Knows: how a replay is asked for, and how two answers are compared. Must not know: the admin's pages, rights.
A replay belongs to who asked for it, to no conversation, and is followed by nobody; its text may be somebody else's, so
it can be read where the first one can, in the admin, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from django.contrib.auth.models import User

from inference.config import SamplingParams
from inference.scheduling.request import RequestRefused
from inference.serving.client import UNREACHABLE, EngineClient
from playground.gateway import Gateway
from playground.models import UNFINISHED_STATES, InferenceRequest

ENDED_BY_ITSELF = frozenset({"stop", "length"})
BEFORE, AFTER = 40, 60  # characters shown around the first difference


@dataclass(frozen=True, slots=True)
class Comparison:
    """verdict: "same", "same_so_far" (one of them was cut short, and has nothing else up to there), "differs".

    unit: "token" where both logs were still kept, else "character".  at: the first unit that differs, counted from 1;
    of answers that agree, how many units were compared.
    """

    verdict: str
    unit: str
    at: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


async def start(gateway: Gateway, row: InferenceRequest, user: User) -> InferenceRequest:
    """Submit `row` again. Raises RequestRefused: conflict for what is a replay itself, not over, or being replayed."""
    if row.replay_of_id is not None:
        raise RequestRefused("conflict", "this request is a replay itself; replay the first one")
    if not row.is_final:
        raise RequestRefused("conflict", "this request is not over yet; wait for its end, or cancel it")
    if not row.is_kept:
        raise RequestRefused("conflict", "what was asked is not kept any more, so it can't be asked again")
    if await row.replays.filter(state__in=UNFINISHED_STATES).aexists():
        raise RequestRefused("conflict", "a replay of this request runs already")
    params = SamplingParams.from_mapping({**row.params, "seed": row.seed})
    return await gateway.submit(
        user, params=params, messages=row.messages, prompt=row.prompt, prompt_ids=row.prompt_ids, replay_of=row
    )


async def compare(client: EngineClient, first: InferenceRequest, replay: InferenceRequest) -> Comparison | None:
    """Of a replay with what it repeats, kept in the replay's row, so that it outlives the logs. None until both are
    over."""
    if not (first.is_final and replay.is_final):
        return None
    if replay.comparison:
        return Comparison(**replay.comparison)
    cut = first.finish_reason not in ENDED_BY_ITSELF, replay.finish_reason not in ENDED_BY_ITSELF
    ids = await token_ids(client, first), await token_ids(client, replay)
    if ids[0] is not None and ids[1] is not None:
        found = first_difference(ids[0], ids[1], "token", cut)
    else:
        found = first_difference(first.answer, replay.answer, "character", cut)
    await InferenceRequest.objects.filter(pk=replay.pk).aupdate(comparison=found.to_json())
    return found


async def token_ids(client: EngineClient, row: InferenceRequest) -> list[int] | None:
    """Those of the answer, the end token among them. None where the log is not kept any more, or out of reach."""
    try:
        log = await client.log(str(row.pk))
    except UNREACHABLE:
        return None
    return [*log.token_ids, *log.finish.token_ids] if log.finish is not None else None


def first_difference(
    first: Sequence[int] | str, second: Sequence[int] | str, unit: str, cut: tuple[bool, bool]
) -> Comparison:
    """cut: whether the first, and the second, was ended from outside, so that it may be shorter and no different."""
    shared = common(first, second)
    if len(first) == len(second) == shared:
        return Comparison("same_so_far" if any(cut) else "same", unit, shared)
    if (cut[0] and shared == len(first)) or (cut[1] and shared == len(second)):
        return Comparison("same_so_far", unit, shared)
    return Comparison("differs", unit, shared + 1)


def common(first: Sequence[int] | str, second: Sequence[int] | str) -> int:
    """How many units the two have alike from their beginning."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(first), len(second)))


def around(first: str, second: str) -> tuple[str, str, str]:
    """The end of what two texts share, and how each goes on."""
    shared = common(first, second)
    return first[max(0, shared - BEFORE) : shared], first[shared : shared + AFTER], second[shared : shared + AFTER]
