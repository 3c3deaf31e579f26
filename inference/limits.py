"""What of a running engine may be changed, and how far: plain data and its checks.

Knows: actions, seats, budget, blocks, and the numbers that the engine was started with. Must not know: torch, the
scheduler, who asks. The web checks with the same words before it hands a change on, so nothing heavy is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from inference.checks import Check, ParameterError, choice, integer, number
from inference.config import POLICIES

MOST_SLOW_MS = 60_000.0  # an iteration a minute


@dataclass(frozen=True, slots=True)
class Limits:
    """What one iteration may use. Fields are named as in `EngineConfig`.

    An engine can be given less than it was started with and then as much again, never more: its buffers, CUDA graphs
    and what it measured of a GPU's memory are for those numbers.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_blocks: int

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Those among an engine's settings. Raises KeyError where one is not there."""
        return cls(*(settings[name] for name in NAMES))

    def to_mapping(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in NAMES}

    def changed(self, most: Limits, values: Mapping[str, Any]) -> Limits:
        """These with `values` for some of them. most: what the engine was started with.

        Raises ParameterError: all are taken or none.
        """
        wanted = replace(self, **{name: _checked(name, value, most) for name, value in values.items()})
        seats, budget = wanted.max_num_seqs, wanted.max_num_batched_tokens
        if budget < seats:
            raise ParameterError(
                f"max_num_batched_tokens would be {budget} and max_num_seqs {seats}: each running request needs at "
                f"least one token of the budget"
            )
        return wanted


NAMES = tuple(Limits.__dataclass_fields__)
# Each with the values that it takes: all but `set` need each of them, `set` one at least.
ACTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("pause", "resume", "step"), ()),
    **{"slow": ("ms",), "policy": ("policy",), "set": NAMES},
}
_CHECKS: dict[str, Check] = {"ms": number(0.0, MOST_SLOW_MS), "policy": choice(*POLICIES)}


def checked_values(action: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of an action, None left out. Raises ParameterError for an action that is none, and for a value that is
    missing, not the action's or out of every engine's range; `Limits.changed` knows the one engine's."""
    choice(*ACTIONS)("action", action)
    given = {name: value for name, value in values.items() if value is not None}
    if strangers := sorted(set(given) - set(ACTIONS[action])):
        raise ParameterError(f"{action} takes no {strangers[0]}")
    if ACTIONS[action] and not given:
        raise ParameterError(f"{action} needs {' or '.join(ACTIONS[action])}")
    return {name: _CHECKS[name](name, value) if name in _CHECKS else value for name, value in given.items()}


def _checked(name: str, value: Any, most: Limits) -> int:
    try:
        return integer(1, getattr(most, name))(name, value)
    except ParameterError as error:
        raise ParameterError(f"{error}; the engine was started with {getattr(most, name)}") from None
