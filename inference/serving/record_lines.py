"""Iteration records as they travel: a line of JSON each, with its name in front.

Knows: how a line begins. Must not know: what else is in it. A line is passed on as it came; only its name is read.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import orjson

_BEGIN = re.compile(rb'\{"n":(\d+),"epoch":(\d+),')  # as IterationRecord's fields are in order


class RecordName(NamedTuple):
    """Names an iteration of an engine for ever, and sorts in time."""

    epoch: int
    n: int


class RecordLine(NamedTuple):
    name: RecordName
    data: bytes  # the record as JSON


def name_of(data: bytes) -> RecordName:
    """Raises ValueError or KeyError where it is no record."""
    if begin := _BEGIN.match(data):
        return RecordName(int(begin[2]), int(begin[1]))
    told = orjson.loads(data)
    return RecordName(told["epoch"], told["n"])


def line_of(data: bytes) -> RecordLine:
    return RecordLine(name_of(data), data)
