"""The `params` object of a `generate` message: sampling parameters in the form in which JSON has them.

Knows: names, ranges, a line for people. Must not know: how they are checked; tests hold the ranges against the checks
of `inference.params`.
"""

from __future__ import annotations

from typing import Any

from inference.params import (
    FORMAT_TYPES,
    MAX_BIASED,
    MAX_LOGPROBS,
    MAX_N,
    MAX_TOKEN_ID,
    MAX_TOKENS_LIMIT,
    PRIORITIES,
    SEED_LIMIT,
    SamplingParams,
)


def _whole(low: int, high: int, words: str) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high, "description": words}


def _number(low: float, high: float, words: str) -> dict[str, Any]:
    return {"type": "number", "minimum": low, "maximum": high, "description": words}


_STOP = {"type": "string", "minLength": 1, "maxLength": 256}
_IDS = {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID - 1}
_BIAS = {"type": "number", "minimum": -100, "maximum": 100}
PARAMS: dict[str, dict[str, Any]] = {
    "max_tokens": _whole(1, MAX_TOKENS_LIMIT, "tokens of the answer at most"),
    "min_tokens": _whole(0, MAX_TOKENS_LIMIT, "tokens before which it does not end; at most max_tokens"),
    "temperature": _number(0, 100, "0 is greedy"),
    "top_p": _number(0, 1, "sampled from the likeliest tokens that have this much of the probability; 1 is off"),
    "top_k": _whole(0, MAX_TOKEN_ID, "sampled from so many of the likeliest tokens; 0 is off"),
    "min_p": _number(0, 1, "tokens less likely than this share of the likeliest one's probability are out"),
    "seed": {
        **_whole(0, SEED_LIMIT - 1, "with it, token number i depends on the seed, i and the prompt alone"),
        "type": ["integer", "null"],
    },
    "stop": {
        "oneOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": 16}],
        "description": "strings that end the answer; they are not shown",
    },
    "stop_token_ids": {"type": "array", "items": _IDS, "maxItems": 64, "description": "ids that end the answer"},
    "ignore_eos": {"type": "boolean", "description": "go on after the end token, to max_tokens"},
    "presence_penalty": _number(-2, 2, "taken from the logit of each token that the answer has already"),
    "frequency_penalty": _number(-2, 2, "the same, times how often it has it"),
    "repetition_penalty": {
        "type": "number",
        "exclusiveMinimum": 0,
        "maximum": 10,
        "description": "divides logits of tokens in prompt or answer; 1 is off",
    },
    "logit_bias": {
        "type": "object",
        "additionalProperties": _BIAS,
        "maxProperties": MAX_BIASED,
        "description": "token ids (as strings) and what is added to their logits",
    },
    "logprobs": {
        **_whole(0, MAX_LOGPROBS, "how many of the likeliest tokens are told beside each chosen one; null: none"),
        "type": ["integer", "null"],
    },
    "n": _whole(1, MAX_N, "answers to this prompt, each a request of its own"),
    "priority": _whole(*PRIORITIES, "higher ones run first; above 0 for staff only"),
    "response_format": {
        "type": ["object", "null"],
        "required": ["type"],
        "properties": {
            "type": {"enum": list(FORMAT_TYPES)},
            "json_schema": {"type": "object", "description": "`schema`: the JSON Schema"},
            "regex": {"type": "string"},
        },
        "description": "a form that the answer is held to",
    },
}


def params_schema() -> dict[str, Any]:
    defaults = SamplingParams().to_mapping()
    return {
        "type": "object",
        "additionalProperties": False,
        "description": "How the answer is sampled and when it stops. All are optional.",
        "properties": {name: {**form, "default": defaults[name]} for name, form in PARAMS.items()},
    }
