"""The AsyncAPI document: valid, equal to the committed one, and true: real frames and bounds against its schemas."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from django.contrib.auth.models import User
from django.test import Client
from pydantic import TypeAdapter
from support import asyncapi_file
from support.described import check_frame
from support.ledgers import Run
from support.sockets import Browser

from inference.params import ParameterError, SamplingParams
from inference.serving.messages import EngineStatus
from playground.asyncapi.document import FROM_CLIENTS, FROM_SERVER, MESSAGES, ON_CHANNEL, document
from playground.asyncapi.examples import EXAMPLES
from playground.asyncapi.params import PARAMS
from playground.asyncapi.words import CLOSE_CODES, SUMMARIES
from playground.sockets import snapshot
from playground.sockets.frames import decode

with_database = pytest.mark.django_db(transaction=True)
ROOT = Path(__file__).resolve().parents[2]
SPECIFICATION = ROOT / "node_modules" / "@asyncapi" / "specs" / "schemas" / f"{document()['asyncapi']}.json"


def test_the_document_is_asyncapi_3() -> None:
    rules = jsonschema_rs.validator_for(json.loads(SPECIFICATION.read_text()))
    rules.validate(document())
    assert not rules.is_valid({**document(), "channels": {"v1": {"adress": "/ws/v1/"}}})


def test_every_reference_leads_somewhere() -> None:
    whole = document()

    def follow(value: Any) -> None:
        if isinstance(value, dict) and isinstance(value.get("$ref"), str):
            place = whole
            for name in value["$ref"].removeprefix("#/").split("/"):
                place = place[name]
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            follow(item)

    follow(whole)


def test_the_committed_document_is_the_generated_one() -> None:
    assert asyncapi_file.FILE.read_text() == asyncapi_file.text(), "make fix writes docs/asyncapi.json anew"


def test_every_socket_address_is_a_channel() -> None:
    from playground.sockets.urls import urlpatterns

    addresses = {f"/{pattern.pattern}" for pattern in urlpatterns if str(pattern.pattern)}
    assert {channel["address"] for channel in document()["channels"].values()} == addresses


def test_every_message_is_described_and_has_an_example() -> None:
    assert set(EXAMPLES) == set(MESSAGES)
    assert set(MESSAGES) <= set(SUMMARIES)
    assert [kind for kind, model in MESSAGES.items() if not model.__doc__] == []
    used = {kind for kinds in ON_CHANNEL.values() for kind in kinds}
    assert used == set(MESSAGES)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_examples_are_what_they_are_examples_of(kind: str) -> None:
    check_frame(EXAMPLES[kind])
    if kind in FROM_CLIENTS:
        assert decode(json.dumps(EXAMPLES[kind])).type == kind
    else:
        assert TypeAdapter(MESSAGES[kind]).validate_json(json.dumps(EXAMPLES[kind]), strict=True)
    with pytest.raises(jsonschema_rs.ValidationError):
        check_frame({**EXAMPLES[kind], "no_such_field": 1})


def test_the_guide_shows_each_message_as_it_is_and_every_close_code() -> None:
    guide = (ROOT / "docs" / "websocket.md").read_text()
    frames = [
        json.loads(line) for block in re.findall(r"```json\n(.+?)```", guide, re.S) for line in block.splitlines()
    ]
    for frame in frames:
        check_frame(frame)
        if frame["type"] in FROM_CLIENTS:
            decode(json.dumps(frame))
    assert {frame["type"] for frame in frames} == {*FROM_CLIENTS, *FROM_SERVER}
    assert all(f"| {code} | {meaning} |" in guide for code, meaning in CLOSE_CODES.items())


def test_the_close_codes_of_the_sockets_are_listed() -> None:
    from playground.sockets import base

    codes = {value for value in vars(base).values() if isinstance(value, int) and 1000 <= value < 5000}
    assert codes
    assert codes <= set(CLOSE_CODES)


@pytest.mark.parametrize("name", PARAMS)
def test_bounds_of_parameters_are_those_of_the_engine(name: str) -> None:
    form = PARAMS[name]
    step = 1 if "integer" in form.get("type", "") else 0.001
    for bound, beyond in (("minimum", -step), ("maximum", step), ("exclusiveMinimum", 0)):
        if bound not in form:
            continue
        if bound != "exclusiveMinimum":
            extra = {"max_tokens": 1 << 20} if name == "min_tokens" else {}
            SamplingParams.from_mapping({**extra, name: form[bound]})
        with pytest.raises(ParameterError):
            SamplingParams.from_mapping({name: form[bound] + beyond})


def test_parameters_are_all_there_with_their_defaults() -> None:
    defaults = SamplingParams().to_mapping()
    described = document()["components"]["schemas"]["Params"]["properties"]
    assert {name: form["default"] for name, form in described.items()} == defaults


@with_database
async def test_frames_of_the_chat_are_as_described(gateway: Any, alice: User) -> None:
    socket = await Browser.of(alice)
    check_frame(socket.hello)
    heard = {"hello"}
    for words, params in (("patient word", {}), ("likely", {"logprobs": 1}), ("nan", {})):
        await socket.ask(type="generate", ref="a", prompt=words, params=params)
        for frame in await socket.hear_until("finished"):
            check_frame(frame)
            heard.add(frame["type"])
    await socket.ask(type="ping")
    check_frame(pong := await socket.hear())
    await socket.disconnect()
    assert heard | {pong["type"]} == set(FROM_SERVER) - {"draining"}


@with_database
async def test_frames_of_the_scheduler_feed_are_as_described(
    gateway: Any, staff: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = EngineStatus("engine-1", 1, "ready", True, 0.0, model="m", settings={"max_num_seqs": 4}, epoch=1)
    refused = {"action": "set", "text": "no", "at": 1.5}
    run, client = Run(1, 4), gateway.client
    client.statuses = [status]
    client.history = [item.to_json() for item in run.records]
    client.ledger.kept = {(1, n): line for n, line in enumerate(run.lines, 1)}
    monkeypatch.setattr(snapshot, "BLOCKS_AT_ONCE", 5)  # of 12: the map comes in frames of its own
    socket = await Browser.of(staff, "/ws/scheduler/")
    check_frame(await socket.hear("snapshot"))
    check_frame(await socket.hear("blocks"))
    await client.records.put([item.to_json() for item in run.more(1)])
    check_frame(await socket.hear("iterations"))
    client.statuses = [EngineStatus("engine-1", 1, "loading", False, 0.0, refused=refused)]
    check_frame(told := await socket.hear("snapshot"))
    assert told["engines"][0]["refused"] == refused
    await socket.disconnect()


def test_it_is_served_with_the_address_by_which_one_came(client: Client, alice: User) -> None:
    assert client.get("/asyncapi.json", headers={"Accept": "application/json"}).status_code == 401
    client.force_login(alice)
    served = client.get("/asyncapi.json", headers={"Host": "localhost:1234"}).json()
    assert served == document("localhost:1234")
    assert served["servers"]["this"] == {**document()["servers"]["this"], "host": "localhost:1234"}
