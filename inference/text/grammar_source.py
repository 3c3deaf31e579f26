"""From a response format to the grammar that llguidance compiles, within bounds.

Knows: the response formats, llguidance's notation, what is too large to compile in good time. Must not know: tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from inference.config import RequestRefused

MAX_REGEX = 4096  # characters of a regex, and of all patterns of a schema together
MAX_MULTIPLE_OF = 10_000  # the automaton of a multipleOf has that many states
MAX_DEPTH = 32  # of json_object's values

# How llguidance says that a limit was met.
_LIMITS = ("precomputation failed", "too many ", "fuel exhausted", "too big", "if regex is empty", " items; max is ")

# Without it only one tokenisation of the text that must come would be allowed.
_HEADER = '%llguidance {"no_forcing": true}\n'
# A small model that may go on with spaces for ever does so.
_OPTIONS = {"whitespace_pattern": r"[ \t\r\n]{1,24}"}


def grammar_source(response_format: dict[str, Any]) -> str:
    """llguidance's text for a format as `SamplingParams` has it. Raises RequestRefused("bad_params")."""
    kind = response_format["type"]
    if kind == "regex":
        return _HEADER + _regex_source(response_format["regex"])
    schema = _json_object() if kind == "json_object" else response_format["schema"]
    if schema is False:
        raise RequestRefused("bad_params", "response_format: nothing matches the schema false")
    schema = {} if schema is True else schema
    _check_schema(schema)
    return f"{_HEADER}start: %json {json.dumps({**schema, 'x-guidance': _OPTIONS})}"


def error_sentence(error: str) -> str:
    """What llguidance says, as one sentence without its places in the text above."""
    first, *rest = error.strip().splitlines() or [""]
    reason = next((line.partition("error: ")[2] for line in rest if line.startswith("error: ")), first)
    if any(limit in first.lower() for limit in _LIMITS):
        return "it is too complex; use a simpler one"
    reason = re.sub(r"^at \d+\(\d+\): |failed to compile JSON schema: |Enable '\w+' option.*", "", reason).strip()
    return reason if len(reason) <= 200 else reason[:197] + "..."


def _regex_source(regex: str) -> str:
    from llguidance import LLMatcher

    _check_length("the regex", len(regex))
    # The whole answer is matched in any case, and llguidance knows no anchors.
    regex = regex.removeprefix("^")
    if regex.endswith("$") and (len(regex) - len(regex[:-1].rstrip("\\"))) % 2:
        regex = regex[:-1]
    return json.loads(LLMatcher.grammar_from_regex(regex))["grammars"][0]["lark_grammar"]


def _json_object() -> dict[str, Any]:
    """Any object, MAX_DEPTH deep at most: readers of JSON have limits, too."""
    simple = {"type": ["string", "number", "boolean", "null"]}
    kinds: dict[str, Any] = {"v0": simple}
    for depth in range(1, MAX_DEPTH):
        inner = {"$ref": f"#/$defs/v{depth - 1}"}
        array, record = {"type": "array", "items": inner}, {"type": "object", "additionalProperties": inner}
        kinds[f"v{depth}"] = {"anyOf": [simple, array, record]}
    return {"type": "object", "additionalProperties": {"$ref": f"#/$defs/v{MAX_DEPTH - 1}"}, "$defs": kinds}


def _check_schema(schema: dict[str, Any]) -> None:
    patterns = 0
    for key, value in _members(schema):
        if key == "pattern" and isinstance(value, str):
            patterns += len(value)
        elif key == "patternProperties" and isinstance(value, dict):
            patterns += sum(map(len, value))
        elif key == "multipleOf" and isinstance(value, (int, float)) and abs(value) > MAX_MULTIPLE_OF:
            raise RequestRefused(
                "bad_params", f"response_format: multipleOf is {value}; at most {MAX_MULTIPLE_OF} is allowed"
            )
    _check_length("the patterns of the schema", patterns)


def _members(schema: Any) -> Iterator[tuple[str, Any]]:
    """All keys and values at any depth."""
    rest = [schema]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            yield from value.items()
            rest += value.values()
        elif isinstance(value, list):
            rest += value


def _check_length(what: str, length: int) -> None:
    if length > MAX_REGEX:
        raise RequestRefused(
            "bad_params", f"response_format: {what} has {length} characters; at most {MAX_REGEX} are allowed"
        )
