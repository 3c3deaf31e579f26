"""Ids that the model does not have are refused, with true numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inference.config import SamplingParams
from inference.scheduling.request import RequestRefused
from inference.scheduling.token_ids import checked_ids, checked_params


def test_ids_become_plain_ints() -> None:
    given = np.array([0, 5, 9])
    assert checked_ids("the prompt", given, 10) == [0, 5, 9]
    assert {type(i) for i in checked_ids("the prompt", given, 10)} == {int}
    assert checked_ids("the prompt", [], 10) == []


@pytest.mark.parametrize("wrong", [-1, 10, 2**31, 2**63, 10**400, 10**5000], ids=int.bit_length)
def test_an_id_out_of_range(wrong: int) -> None:
    with pytest.raises(RequestRefused, match=r"the prompt holds token id .*; this model's are 0 to 9") as raised:
        checked_ids("the prompt", [1, wrong, 2], 10)
    assert raised.value.code == "bad_params"


@pytest.mark.parametrize("wrong", [1.0, "1", None, True, [1]])
def test_what_is_no_id(wrong: object) -> None:
    with pytest.raises(RequestRefused, match="the prompt must be whole numbers, not "):
        checked_ids("the prompt", [1, wrong], 10)  # type: ignore[list-item]


def test_good_parameters_come_back_equal() -> None:
    params = SamplingParams(
        stop_token_ids=(0, 9), logit_bias=((9, 1.0),), response_format={"type": "json_schema", "schema": {}}
    )
    assert checked_params(params, 10) == params


@pytest.mark.parametrize("wrong", [10, 2**31 - 1])
@pytest.mark.parametrize("name", ["stop_token_ids", "logit_bias"])
def test_ids_of_parameters(name: str, wrong: int) -> None:
    params = SamplingParams(**{name: [3, wrong] if name == "stop_token_ids" else {3: 1.0, wrong: 1.0}})
    with pytest.raises(RequestRefused, match=f"{name} holds token id {wrong}; this model's are 0 to 9") as raised:
        checked_params(params, 10)
    assert raised.value.code == "bad_params"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", float("nan")),
        ("temperature", "0.7"),
        ("top_k", -1),
        ("seed", 2**63),
        ("logit_bias", ((-1, 1.0),)),
        ("logit_bias", ((2**31, 1.0),)),
        ("stop_token_ids", (-1,)),
        ("min_tokens", 10_000),
    ],
)
def test_a_value_that_came_past_the_door(name: str, value: object) -> None:
    params = replace(SamplingParams())
    object.__setattr__(params, name, value)
    with pytest.raises(RequestRefused, match=name) as raised:
        checked_params(params, 10)
    assert raised.value.code == "bad_params"


@pytest.mark.parametrize("params", [None, {}, {"temperature": 1}])
def test_what_is_no_parameters(params: object) -> None:
    with pytest.raises(RequestRefused, match="must be SamplingParams, not "):
        checked_params(params, 10)  # type: ignore[arg-type]
