"""The teaching controls over HTTP and from the command line: who may, and what is refused with which words."""

from __future__ import annotations

import contextlib
import io
import json
import logging
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client
from support import brokers
from support.workers import WorkerProcess

from inference.scheduling.request import RequestRefused
from inference.serving.client import Control, EngineStatus
from playground.config import Settings
from playground.models import InferenceRequest
from playground.serve import Supervisor

CONTROL, DEMO = "/scheduler/control/", "/scheduler/demo/"
MOST = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "kv_blocks": 100}


def engine(name: str = "engine-1", state: str = "ready") -> EngineStatus:
    return EngineStatus(name, 1, state, False, 0.0, settings={"policy": "continuous", **MOST, "most": MOST})


def signed_in(user: User, **options: Any) -> Client:
    client = Client(**options)
    client.force_login(user)
    return client


def post(client: Client, path: str, body: Any, **headers: str) -> Any:
    data = body if isinstance(body, (str, bytes)) else json.dumps(body)
    return client.post(path, data, content_type="application/json", headers=headers)


def code_of(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@pytest.fixture
def on(settings: Any, gateway: Any) -> Any:
    settings.BATCHSCOPE = Settings(teaching_controls="on")
    gateway.client.statuses = [engine()]
    return gateway


@pytest.mark.parametrize(
    "body",
    [
        {"action": "pause"},
        {"action": "resume"},
        {"action": "step"},
        {"action": "slow", "ms": 250},
        {"action": "slow", "ms": 0.5},
        {"action": "policy", "policy": "static"},
        {"action": "set", "max_num_seqs": 2},
        {"action": "set", "max_num_batched_tokens": 8, "kv_blocks": 100},
    ],
)
def test_what_is_asked_is_handed_on_and_logged(
    body: dict[str, Any], on: Any, staff: User, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "batchscope.controls")
    answer = post(signed_in(staff), CONTROL, {"engine": "engine-1", **body})
    assert (answer.status_code, answer.json()) == (202, {})
    assert on.client.controls == [Control(engine="engine-1", by="staff", **body)]
    assert f"control_asked: {body['action']} of engine-1, by staff" in caplog.text


@pytest.mark.parametrize(
    ("body", "code", "part"),
    [
        ("{", "bad_json", "not JSON"),
        (b"\xff", "bad_json", "not JSON"),
        ("[" * 100_000, "bad_json", "not JSON"),
        ("[]", "bad_message", ""),
        ({"action": "pause"}, "bad_message", "engine"),
        ({"engine": "engine-1"}, "bad_message", "action"),
        ({"engine": "engine-1", "action": "pause", "and": 1}, "bad_message", "and"),
        ({"engine": "engine-1", "action": 5}, "bad_message", "action"),
        ({"engine": "engine-1", "action": "slow", "ms": "5"}, "bad_message", "ms"),
        ({"engine": "engine-1", "action": "set", "kv_blocks": 2.5}, "bad_message", "kv_blocks"),
        ({"engine": "engine-1", "action": "set", "kv_blocks": 10**40}, "bad_message", "kv_blocks"),
        ({"engine": "e" * 65, "action": "pause"}, "bad_message", "engine"),
        ({"engine": "engine-2", "action": "pause"}, "not_found", "no engine named 'engine-2'; there are: engine-1"),
        ({"engine": "engine-1", "action": "explode"}, "bad_params", "it must be one of: pause, resume, step"),
        ({"engine": "engine-1", "action": "slow"}, "bad_params", "slow needs ms"),
        ({"engine": "engine-1", "action": "slow", "ms": 1e9}, "bad_params", "it must be from 0 to 60000"),
        ('{"engine": "engine-1", "action": "slow", "ms": NaN}', "bad_params", "ms is nan"),
        ({"engine": "engine-1", "action": "policy", "policy": "best"}, "bad_params", "continuous, dynamic, static"),
        ({"engine": "engine-1", "action": "set"}, "bad_params", "set needs max_num_seqs"),
        ({"engine": "engine-1", "action": "set", "max_num_seqs": 9}, "bad_params", "it must be from 1 to 8"),
        ({"engine": "engine-1", "action": "set", "kv_blocks": 0}, "bad_params", "it must be from 1 to 100"),
        ({"engine": "engine-1", "action": "set", "max_num_batched_tokens": 4}, "bad_params", "max_num_seqs 8"),
    ],
)
def test_what_is_refused(body: Any, code: str, part: str, on: Any, staff: User) -> None:
    answer = post(signed_in(staff), CONTROL, body)
    assert code_of(answer) == (404 if code == "not_found" else 400, code)
    assert part in answer.json()["error"]["message"]
    assert on.client.controls == []


def test_an_engine_that_is_not_there_yet(on: Any, staff: User) -> None:
    on.client.statuses = [engine(state="loading")]
    assert code_of(post(signed_in(staff), CONTROL, {"engine": "engine-1", "action": "pause"})) == (
        503,
        "engine_unavailable",
    )

    async def away() -> None:
        raise ConnectionError("no route to /tmp/secret.sock")

    on.client.engines = away
    answer = post(signed_in(staff), CONTROL, {"engine": "engine-1", "action": "pause"})
    assert code_of(answer) == (503, "engine_unavailable")
    assert "secret" not in answer.content.decode()


@pytest.mark.parametrize("path", [CONTROL, DEMO])
def test_only_staff_with_a_token_and_only_by_post(path: str, on: Any, alice: User, staff: User) -> None:
    body = {"engine": "engine-1", "action": "pause"} if path == CONTROL else {}
    assert code_of(post(Client(), path, body)) == (401, "unauthorized")
    assert code_of(post(signed_in(alice), path, body)) == (403, "forbidden")
    strict = signed_in(staff, enforce_csrf_checks=True)
    assert code_of(post(strict, path, body)) == (403, "forbidden")
    assert code_of(post(strict, path, body, Origin="http://evil.example")) == (403, "forbidden")
    answer = signed_in(staff).get(path)
    assert (*code_of(answer), answer["Allow"]) == (405, "method_not_allowed", "POST")
    assert on.client.controls == []
    assert not InferenceRequest.objects.exists()
    strict.get("/scheduler/")
    token = strict.cookies["csrftoken"].value
    assert post(strict, path, body, **{"X-CSRFToken": token}).status_code == 202


@pytest.mark.parametrize("path", [CONTROL, DEMO])
def test_where_the_controls_are_off_nobody_may(path: str, on: Any, root: User, settings: Any) -> None:
    for config in (Settings(teaching_controls="off"), Settings(redis_url="redis://elsewhere")):
        settings.BATCHSCOPE = config
        answer = post(signed_in(root), path, {"engine": "engine-1", "action": "pause"})
        assert code_of(answer) == (403, "forbidden")
        assert "BATCHSCOPE_TEACHING_CONTROLS" in answer.json()["error"]["message"]
    assert on.client.controls == []
    settings.BATCHSCOPE = Settings(teaching_controls="on", redis_url="redis://elsewhere")
    assert post(signed_in(root), CONTROL, {"engine": "engine-1", "action": "pause"}).status_code == 202


def test_serve_settles_auto_for_the_processes_that_it_starts(tmp_path: Any) -> None:
    def told(**fields: str) -> str:
        class Listener:
            def fileno(self) -> int:
                return 7

        config = Settings(data_dir=tmp_path, **fields)
        supervisor = Supervisor(config, Listener(), 0.0)  # type: ignore[arg-type]
        return supervisor._web.env["BATCHSCOPE_TEACHING_CONTROLS"]

    assert [told(), told(redis_url="redis://elsewhere")] == ["on", "off"]
    assert [told(teaching_controls="off"), told(teaching_controls="on", redis_url="redis://x")] == ["off", "on"]


def test_the_demo_is_twelve_requests_of_three_kinds_in_the_users_language(on: Any, staff: User) -> None:
    client = signed_in(staff)
    answer = post(client, DEMO, {}, **{"Accept-Language": "en"})
    request_ids = answer.json()["request_ids"]
    assert (answer.status_code, len(set(request_ids))) == (202, 12)
    rows = [InferenceRequest.objects.get(pk=request_id) for request_id in request_ids]
    assert {(row.owner, row.ref, row.conversation) for row in rows} == {(staff, "demo", None)}
    assert [row.params["max_tokens"] for row in rows] == [16, 80, 400] * 4
    assert [row.asked for row in rows][:3] == [
        "1+1=?",
        "Rewrite this advert so that it sells: Our coffee is fresh and it is not expensive.",
        "Write the first chapter of a novel about a lighthouse keeper who finds a letter.",
    ]
    assert len({row.asked for row in rows}) == 12
    chinese = post(client, DEMO, {}, **{"Accept-Language": "zh-CN"}).json()["request_ids"]
    assert InferenceRequest.objects.get(pk=chinese[1]).asked.startswith("请把这段广告文案")
    assert code_of(post(client, DEMO, {"engine": "engine-1"})) == (400, "bad_message")


def test_a_demo_that_the_queue_does_not_take_whole_is_taken_back(on: Any, staff: User) -> None:
    taken = on.submit_all

    async def until_full(*args: Any, **fields: Any) -> Any:
        if await InferenceRequest.objects.acount() >= 5:
            raise RequestRefused("queue_full", "5 requests wait or run, and 5 are allowed; try again in 4 s", 3.2)
        return await taken(*args, **fields)

    on.submit_all = until_full
    answer = post(signed_in(staff), DEMO, {})
    assert code_of(answer) == (429, "queue_full")
    assert answer["Retry-After"] == "4"
    assert on.cancelled == {str(pk) for pk in InferenceRequest.objects.values_list("pk", flat=True)}
    assert len(on.cancelled) == 5


# From the command line


@pytest.fixture(scope="module")
def service() -> Any:
    with brokers.private() as valkey:
        worker = WorkerProcess(valkey.url, "w")
        yield valkey
        worker.close()


@pytest.fixture
def command(service: Any, settings: Any) -> Any:
    settings.BATCHSCOPE = Settings(redis_url=service.url)

    def call(*words: str) -> str:
        out = io.StringIO()
        call_command("control", *words, stdout=out)
        return out.getvalue().strip()

    while True:
        try:
            if "ready" in call("show"):
                return call
        except CommandError:
            continue


def test_from_the_command_line(command: Any) -> None:
    limits = "max_num_seqs 8, max_num_batched_tokens 512, kv_blocks 64"
    assert command("show") == f"w: ready, policy continuous, {limits}"
    assert command("pause", "--engine", "w") == f"w: paused, policy continuous, {limits}"
    assert command("resume") == f"w: ready, policy continuous, {limits}"
    for words, sentence in (
        (("slow",), "slow needs ms"),
        (("slow", "soon"), "slow takes a number of milliseconds, not 'soon'"),
        (("pause", "now"), "pause takes no policy"),
        (("set",), "set needs max_num_seqs"),
        (("set", "--max-num-seqs", "9"), "it must be from 1 to 8"),
        (("pause", "--engine", "x"), "no engine named 'x'; there are: w"),
        (("explode",), "invalid choice: 'explode'"),
    ):
        with pytest.raises(CommandError, match=sentence):
            command(*words)


def test_a_refusal_of_the_engine_is_said_on_the_command_line(settings: Any) -> None:
    with brokers.private() as valkey:
        worker = WorkerProcess(valkey.url, "toy")
        settings.BATCHSCOPE = Settings(redis_url=valkey.url)

        def call(*words: str) -> str:
            out = io.StringIO()
            call_command("control", *words, stdout=out)
            return out.getvalue()

        try:
            while True:
                with contextlib.suppress(CommandError):
                    if "ready" in call("show"):
                        break
            with pytest.raises(
                CommandError, match="toy refuses: the engine is not paused; pause it, then step"
            ) as told:
                call("step")
            assert told.value.returncode == 1
            assert call("pause").startswith("toy: paused")
            assert call("step").startswith("toy: paused")
            assert call("set", "--kv-blocks", "64").strip().endswith("kv_blocks 64")
        finally:
            worker.close()


def test_an_engine_that_does_not_answer(command: Any, service: Any, settings: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("playground.management.commands.control.WITHIN", 0.3)

    async def nowhere(client: Any, control: Any) -> None:
        pass

    monkeypatch.setattr("playground.management.commands.control.hand_on", nowhere)
    with pytest.raises(CommandError, match=r"w has not answered within 0\.3 s"):
        command("pause")


def test_from_the_command_line_where_they_are_off_or_nothing_runs(settings: Any, tmp_path: Any) -> None:
    settings.BATCHSCOPE = Settings(teaching_controls="off")
    with pytest.raises(CommandError, match="BATCHSCOPE_TEACHING_CONTROLS is off"):
        call_command("control", "pause")
    settings.BATCHSCOPE = Settings(data_dir=tmp_path)
    with pytest.raises(CommandError, match="there is no broker"):
        call_command("control", "pause")
