"""What may be changed of a running engine, and the sentences for what may not."""

from __future__ import annotations

from typing import Any

import pytest

from inference.checks import ParameterError
from inference.limits import Limits, checked_values

MOST = Limits(8, 64, 100)


def test_some_are_changed_and_the_others_stay() -> None:
    less = MOST.changed(MOST, {"max_num_seqs": 2, "kv_blocks": 40})
    assert less == Limits(2, 64, 40)
    assert less.changed(MOST, {"max_num_batched_tokens": 2, "kv_blocks": 100}) == Limits(2, 2, 100)
    assert Limits.of({**less.to_mapping(), "policy": "static"}) == less


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"max_num_seqs": 9}, "max_num_seqs is 9; it must be from 1 to 8; the engine was started with 8"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0; it must be from 1 to 8"),
        ({"max_num_batched_tokens": 65}, "max_num_batched_tokens is 65; it must be from 1 to 64"),
        ({"kv_blocks": 101}, "kv_blocks is 101; it must be from 1 to 100; the engine was started with 100"),
        ({"kv_blocks": 2.5}, "kv_blocks must be a whole number, not 2.5"),
        ({"kv_blocks": True}, "kv_blocks must be a whole number, not True"),
        ({"max_num_batched_tokens": 7}, "max_num_batched_tokens would be 7 and max_num_seqs 8"),
    ],
)
def test_what_can_not_be(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ParameterError, match=sentence):
        MOST.changed(MOST, values)


def test_both_ends_of_a_bound_move_at_once() -> None:
    less = Limits(2, 2, 100)
    assert less.changed(MOST, {"max_num_seqs": 4, "max_num_batched_tokens": 4}) == Limits(4, 4, 100)


@pytest.mark.parametrize(
    ("action", "values", "sentence"),
    [
        ("explode", {}, "action is 'explode'; it must be one of: pause, resume, step, slow, policy, set"),
        (["pause"], {}, "action is"),
        (None, {}, "action is None"),
        ("pause", {"ms": 5}, "pause takes no ms"),
        ("slow", {}, "slow needs ms"),
        ("slow", {"ms": None}, "slow needs ms"),
        ("slow", {"ms": -1}, "ms is -1; it must be from 0 to 60000"),
        ("slow", {"ms": float("nan")}, "ms is nan"),
        ("slow", {"ms": "fast"}, "ms must be a number, not 'fast'"),
        ("policy", {"policy": "best"}, "policy is 'best'; it must be one of: continuous, dynamic, static"),
        ("policy", {"policy": ["static"]}, "policy is"),
        ("set", {}, "set needs max_num_seqs or max_num_batched_tokens or kv_blocks"),
        ("set", {"ms": 5, "kv_blocks": 4}, "set takes no ms"),
    ],
)
def test_actions_that_make_no_sense(action: Any, values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ParameterError, match=sentence):
        checked_values(action, values)


def test_actions_that_do() -> None:
    assert checked_values("step", {"ms": None}) == {}
    assert checked_values("slow", {"ms": 250}) == {"ms": 250.0}
    assert checked_values("set", {"kv_blocks": 7, "max_num_seqs": None}) == {"kv_blocks": 7}
