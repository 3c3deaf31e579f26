"""Every sampling parameter, good values and bad: what is bad is one short sentence that names it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from inference.params import MAX_BIASED, MAX_FORMAT_BYTES, ParameterError, SamplingParams

NAN, INFINITY, HUGE, ENDLESS = math.nan, math.inf, 10**400, 10**5000
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
SCHEMA_FORMAT = {"type": "json_schema", "schema": SCHEMA}


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


GOOD: dict[str, list[tuple[Any, Any]]] = {
    "max_tokens": [(1, 1), (1 << 20, 1 << 20)],
    "min_tokens": [(0, 0), (256, 256)],
    "temperature": [(0, 0.0), (1e-6, 1e-6), (0.7, 0.7), (1, 1.0), (100, 100.0), (-0.0, 0.0)],
    "top_p": [(0, 0.0), (1e-6, 1e-6), (1, 1.0)],
    "top_k": [(0, 0), (1, 1), (1 << 31, 1 << 31)],
    "min_p": [(0, 0.0), (1, 1.0)],
    "seed": [(None, None), (0, 0), (2**63 - 1, 2**63 - 1)],
    "stop": [(None, ()), ([], ()), ("a", ("a",)), (["a", "b"], ("a", "b")), (["x" * 256] * 16, ("x" * 256,) * 16)],
    "stop_token_ids": [(None, ()), ([], ()), ([0, 2**31 - 1], (0, 2**31 - 1)), ((5,) * 64, (5,) * 64)],
    "ignore_eos": [(True, True), (False, False)],
    "presence_penalty": [(-2, -2.0), (0, 0.0), (2, 2.0)],
    "frequency_penalty": [(-2, -2.0), (0, 0.0), (2, 2.0)],
    "repetition_penalty": [(1e-6, 1e-6), (1, 1.0), (10, 10.0)],
    "logit_bias": [
        (None, ()),
        ({}, ()),
        ([], ()),
        ({"7": -100, "5": 100}, ((5, 100.0), (7, -100.0))),
        ({7: 1, 0: 0.5}, ((0, 0.5), (7, 1.0))),
        (((7, 1.0),), ((7, 1.0),)),
        ([[7, 1], [2, 3]], ((2, 3.0), (7, 1.0))),
        ({str(2**31 - 1): 1}, ((2**31 - 1, 1.0),)),
    ],
    "logprobs": [(None, None), (0, 0), (20, 20)],
    "n": [(1, 1), (16, 16)],
    "priority": [(-2, -2), (2, 2)],
    "response_format": [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "json_object"}),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}, SCHEMA_FORMAT),
        (SCHEMA_FORMAT, SCHEMA_FORMAT),
        ({"type": "json_schema", "schema": True}, {"type": "json_schema", "schema": True}),
        ({"type": "regex", "regex": "a+"}, {"type": "regex", "regex": "a+"}),
        ({"type": "regex", "pattern": "a+"}, {"type": "regex", "regex": "a+"}),
    ],
}  # fmt: skip

NO_INTEGER = [0.5, 1.0, "7", "", True, None, [], {}, [5], NAN, INFINITY, -1, HUGE, -HUGE, ENDLESS, nested(20_000)]
NO_NUMBER = [NAN, INFINITY, -INFINITY, "0.7", "", True, None, [], {}, [0.5], HUGE, -HUGE, ENDLESS, nested(20_000)]
NO_TOKEN_IDS = [[-1], [2**31], [HUGE], [ENDLESS], [True], [None], ["5"], [1.0], [[5]], [nested(20_000)]]
BAD: dict[str, list[Any]] = {
    "max_tokens": [*NO_INTEGER, 0, (1 << 20) + 1],
    "min_tokens": [*NO_INTEGER, (1 << 20) + 1, 257],
    "temperature": [*NO_NUMBER, -1, -1e-6, 100.1],
    "top_p": [*NO_NUMBER, -0.1, 1.1],
    "top_k": [*NO_INTEGER, (1 << 31) + 1],
    "min_p": [*NO_NUMBER, -0.1, 1.1],
    "seed": [*(value for value in NO_INTEGER if value is not None), 2**63],
    "stop": [5, True, {}, "", [""], ["a", 5], [["a"]], ["a"] * 17, "x" * 257, [ENDLESS], nested(20_000)],
    "stop_token_ids": [*NO_TOKEN_IDS, 5, "5", {}, [1] * 65],
    "ignore_eos": [None, 0, 1, "true", [], NAN],
    "presence_penalty": [*NO_NUMBER, -2.1, 2.1],
    "frequency_penalty": [*NO_NUMBER, -2.1, 2.1],
    "repetition_penalty": [*NO_NUMBER, 0, -1, 10.1],
    "logit_bias": [
        *({token_id: 1.0} for token_id in (-1, 2**31, HUGE, ENDLESS, True, None, 1.0)),
        *({token_id: 1.0} for token_id in ("-1", str(2**31), "1e3", "٣", " 5", "", "9" * 5000)),
        *({"5": bias} for bias in (NAN, INFINITY, -INFINITY, "1", None, True, HUGE, ENDLESS, 100.1, -100.1, [1])),
        *([5], [[5]], [[5, 1, 1]], ["51"], [[[5], 1]], "51", 5, True, nested(20_000)),
        {str(token_id): 1 for token_id in range(MAX_BIASED + 1)},
    ],
    "logprobs": [*(value for value in NO_INTEGER if value is not None), 21],
    "n": [*NO_INTEGER, 0, 17],
    "priority": [*(value for value in NO_INTEGER if value != -1), -3, 3],
    "response_format": [
        *("json_object", True, 5, [], {}, {"type": None}, {"type": "xml"}, {"type": ["regex"]}, nested(20_000)),
        *({"type": "regex"}, {"type": "regex", "regex": ""}, {"type": "regex", "regex": 5}),
        *({"type": "json_schema"}, {"type": "json_schema", "json_schema": {}}),
        *({"type": "json_schema", "schema": schema} for schema in ("{}", None, 5, [], {"a": NAN}, {"a": {1, 2}})),
        {"type": "json_schema", "schema": {"a": nested(20_000)}},
        {"type": "json_schema", "schema": {"a": ENDLESS}},
        {"type": "regex", "regex": "a" * MAX_FORMAT_BYTES},
    ],
}  # fmt: skip

DEFAULTS = SamplingParams()
NAMES = sorted(DEFAULTS.to_mapping())


def test_every_parameter_is_in_the_tables() -> None:
    assert sorted(GOOD) == sorted(BAD) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_good_values(name: str) -> None:
    for value, kept in GOOD[name]:
        result = getattr(SamplingParams.from_mapping({name: value}), name)
        assert result == kept
        assert type(result) is type(kept)


@pytest.mark.parametrize("name", NAMES)
def test_bad_values(name: str) -> None:
    for place, value in enumerate(BAD[name]):
        with pytest.raises(ParameterError) as raised:
            SamplingParams.from_mapping({name: value})
        message = str(raised.value)
        assert name in message, place
        assert len(message) < 250, place
        assert "\n" not in message, place


@pytest.mark.parametrize("name", NAMES)
def test_there_and_back(name: str) -> None:
    """Through JSON, as a request goes through the broker."""
    for value, _ in GOOD[name]:
        params = SamplingParams.from_mapping({name: value})
        assert SamplingParams.from_mapping(json.loads(json.dumps(params.to_mapping()))) == params


def test_all_at_once_there_and_back() -> None:
    values = {name: good[-1][0] for name, good in GOOD.items()}
    params = SamplingParams.from_mapping({**values, "min_tokens": 3})
    assert SamplingParams.from_mapping(params.to_mapping()) == params
    assert SamplingParams(**{**values, "min_tokens": 3}) == params


@pytest.mark.parametrize("name", ["max_token", "best_of", "", "x" * 10_000, "__class__"])
def test_unknown_names(name: str) -> None:
    with pytest.raises(ParameterError, match="is not a sampling parameter; there are: frequency_penalty, ") as raised:
        SamplingParams.from_mapping({name: 1})
    assert len(str(raised.value)) < 500


def test_sentences() -> None:
    for values, sentence in (
        ({"temperature": -1}, "temperature is -1; it must be from 0 to 100"),
        ({"temperature": "0.7"}, "temperature must be a number, not '0.7'"),
        ({"temperature": NAN}, "temperature is nan; it must be from 0 to 100"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; it must be more than 0, and at most 10"),
        ({"max_tokens": 5, "min_tokens": 6}, "min_tokens is 6, more than max_tokens, which is 5"),
        ({"logit_bias": {"5": 101}}, "logit_bias of token id 5 is 101; it must be from -100 to 100"),
        ({"logit_bias": {"-1": 1}}, "a token id of logit_bias must be a whole number, not '-1'"),
        ({"seed": 2**63}, "seed is 9223372036854775808; it must be from 0 to 9223372036854775807"),
    ):
        with pytest.raises(ParameterError) as raised:
            SamplingParams.from_mapping(values)
        assert str(raised.value) == sentence


def test_what_counts_as_a_penalty() -> None:
    assert not DEFAULTS.has_penalties
    for name in ("presence_penalty", "frequency_penalty", "repetition_penalty"):
        assert SamplingParams(**{name: 0.5}).has_penalties


def test_a_format_is_a_copy() -> None:
    schema = {"type": "object"}
    params = SamplingParams(response_format={"type": "json_schema", "schema": schema})
    schema["type"] = "array"
    assert params.response_format == {"type": "json_schema", "schema": {"type": "object"}}


def test_siblings_of_a_seed() -> None:
    params = SamplingParams(n=16, seed=5, temperature=0.5)
    siblings = params.siblings()
    seeds = [one.seed for one in siblings]
    assert len(siblings) == len(set(seeds)) == 16
    assert seeds[0] == 5
    assert all(seed is not None and 0 <= seed < 2**63 for seed in seeds)
    assert {(one.n, one.temperature) for one in siblings} == {(1, 0.5)}
    assert params.siblings() == siblings
    assert [one.seed for one in SamplingParams(n=3, seed=5).siblings()] == seeds[:3]
    assert not set(seeds) & {one.seed for one in SamplingParams(n=16, seed=6).siblings()}


def test_siblings_without_a_seed() -> None:
    assert SamplingParams(n=3).siblings() == [SamplingParams()] * 3
    assert SamplingParams(seed=5).siblings() == [SamplingParams(seed=5)]
