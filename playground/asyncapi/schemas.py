"""JSON Schemas of the sockets' messages, made from the models that the sockets themselves use.

Knows: how pydantic and AsyncAPI (draft 7 of JSON Schema) differ. Must not know: channels, operations.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import is_dataclass
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from inference.scheduling import ledger
from playground.asyncapi.params import params_schema
from playground.sockets.feed import BlocksFrame, IterationsFrame, SnapshotFrame
from playground.sockets.protocol import ClientMessage, ServerMessage

CLIENT: tuple[type[BaseModel], ...] = get_args(get_args(ClientMessage)[0])
SERVER: tuple[type[BaseModel], ...] = get_args(get_args(ServerMessage)[0])
FEED: tuple[type[BaseModel], ...] = (SnapshotFrame, IterationsFrame, BlocksFrame)
AT = "#/components/schemas/"
FEED_PREFIX = "scheduler."  # the ledger has a `Finished` of its own
_COMMENT = re.compile(r"^    (\w+): [^#\n]*#\s*(.+)$", re.MULTILINE)


def type_of(model: type[BaseModel]) -> str:
    """The value of a message's `type`."""
    return get_args(model.model_fields["type"].annotation)[0]


def schema_name(model: type[BaseModel]) -> str:
    return (FEED_PREFIX if model in FEED else "") + model.__name__


def schemas() -> dict[str, Any]:
    """All of them by name, in the form of `components.schemas`."""
    client = _schemas(CLIENT, "validation")
    params = client["Generate"]["properties"]["params"]
    client["Generate"]["properties"]["params"] = {"$ref": f"{AT}Params", "description": params.get("description", "")}
    server = {name: _without_nulls(schema) for name, schema in _schemas(SERVER, "serialization").items()}
    feed = _schemas(FEED, "serialization", FEED_PREFIX)
    for name, words in _ledger_comments().items():
        for field, description in words.items():
            _describe(feed[FEED_PREFIX + name]["properties"][field], description)
    for model in client.values():
        for field in model["properties"].values():
            if field.get("default", 0) is None:
                del field["default"]  # as if it were not there
    return {**client, "Params": params_schema(), **server, **feed}


def _schemas(models: Iterable[type[BaseModel]], mode: Any, prefix: str = "") -> dict[str, Any]:
    template = f"{AT}{prefix}{{model}}"
    _, definitions = models_json_schema([(model, mode) for model in models], ref_template=template)
    return {prefix + name: _draft_7(schema) for name, schema in definitions["$defs"].items()}


def _draft_7(schema: Any) -> Any:
    """The same without pydantic's titles of fields, tuples as draft 7 has them, lines of a paragraph joined."""
    if isinstance(schema, list):
        return [_draft_7(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _draft_7(value) for name, value in schema.items() if name not in ("title", "properties")}
    if "properties" in schema:
        made["properties"] = {name: _draft_7(value) for name, value in schema["properties"].items()}
    if "prefixItems" in made:
        made |= {"items": made.pop("prefixItems"), "additionalItems": False}
    if isinstance(made.get("description"), str):
        made["description"] = joined(made["description"])
    return _plain_null(made)


def _plain_null(schema: dict[str, Any]) -> dict[str, Any]:
    """`type: [x, null]` where pydantic has a union, which readers of the page would have to unfold."""
    match schema.get("anyOf"):
        case [{"type": str(kind), **rest}, {"type": "null"}]:
            beside = {name: value for name, value in schema.items() if name != "anyOf"}
            return {"type": [kind, "null"], **rest, **beside}
    return schema


def _without_nulls(schema: dict[str, Any]) -> dict[str, Any]:
    """All fields are always there, but for those that may be None: these are left out then."""
    optional = {name for name, field in schema.get("properties", {}).items() if field.get("default", 0) is None}
    for name in optional:
        field = schema["properties"][name]
        del field["default"]
        if isinstance(field.get("type"), list):
            field["type"] = field["type"][0]
        else:
            kinds = [kind for kind in field.pop("anyOf") if kind != {"type": "null"}]
            field |= kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    schema["required"] = [name for name in schema.get("properties", {}) if name not in optional]
    return schema


def _ledger_comments() -> dict[str, dict[str, str]]:
    """What the ledger's own lines say of their fields."""
    classes = [kind for kind in vars(ledger).values() if inspect.isclass(kind) and is_dataclass(kind)]
    found = {kind.__name__: _COMMENT.findall(inspect.getsource(kind)) for kind in classes if kind is not ledger.Ledger}
    return {name: {field: words.split("; see ")[0] for field, words in lines} for name, lines in found.items()}


def _describe(field: dict[str, Any], description: str) -> None:
    """A `$ref` with anything beside it is only a `$ref` in draft 7."""
    if "$ref" not in field:
        field["description"] = description


def joined(text: str) -> str:
    """Paragraphs of a docstring, each on one line."""
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n"))
