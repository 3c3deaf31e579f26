"""Frames against what the AsyncAPI document says of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import jsonschema_rs

from playground.asyncapi.document import document


@cache
def _validator(kind: str) -> Any:
    components = document()["components"]
    payload = components["messages"][kind]["payload"]
    return jsonschema_rs.Draft7Validator({"allOf": [payload], "components": components})


def check_frame(frame: dict[str, Any]) -> None:
    """Raises jsonschema_rs.ValidationError."""
    _validator(frame["type"]).validate(frame)
