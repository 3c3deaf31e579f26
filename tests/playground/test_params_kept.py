"""What was asked is put back and replayed as it came: to a grammar the order of a schema's properties matters."""

from __future__ import annotations

import json

from django.contrib.auth.models import User

from inference.config import SamplingParams
from playground import rows
from playground.models import InferenceRequest

SCHEMA = {
    "type": "object",
    "properties": {"zebra": {"type": "string"}, "a": {"const": {"zz": 1, "b": "Ä"}}, "m": {"maximum": 1e16}},
    "required": ["zebra", "a"],
}


def test_parameters_are_given_back_in_their_order(alice: User) -> None:
    wanted = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    params = SamplingParams(response_format=wanted).to_mapping()
    row = InferenceRequest(owner=alice, prompt="x", seed=params.pop("seed") or 0, params=params)
    row.save(force_insert=True)
    kept = InferenceRequest.objects.get(pk=row.pk)
    assert json.dumps(kept.params) == json.dumps(params)
    InferenceRequest.objects.filter(pk=row.pk).update(params=kept.params)  # as retention does
    kept.refresh_from_db()
    assert json.dumps(rows.submission_of(kept).params) == json.dumps(rows.submission_of(row).params)
