"""Iteration records as lines: their names are read without parsing the rest."""

from __future__ import annotations

import orjson
import pytest
from support.ledgers import Run

from inference.serving import record_lines
from inference.serving.record_lines import RecordName, line_of, name_of


def test_the_name_of_an_engines_record_needs_no_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Run(5, 3).lines
    monkeypatch.delattr(record_lines, "orjson")
    assert [name_of(line) for line in lines] == [(5, 1), (5, 2), (5, 3)]
    assert line_of(lines[0]) == (RecordName(5, 1), lines[0])


def test_fields_in_another_order_are_found_as_well() -> None:
    assert name_of(orjson.dumps({"kv": {}, "epoch": 4, "n": 12})) == (4, 12)


@pytest.mark.parametrize("data", [b"", b"[]", b'{"n":1}', b"\xff"])
def test_what_is_no_record_has_no_name(data: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        name_of(data)


def test_names_sort_in_time() -> None:
    assert sorted([RecordName(2, 1), RecordName(1, 9), RecordName(1, 10)]) == [(1, 9), (1, 10), (2, 1)]
