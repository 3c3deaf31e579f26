"""/scheduler/iterations/, /scheduler/blocks/, /scheduler/export/: who may ask, what is answered, what is refused."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.test import Client
from support.ledgers import Run

from inference.serving.client import UNREACHABLE
from playground.http import iterations
from playground.models import InferenceRequest

PATHS = ("/scheduler/iterations/", "/scheduler/blocks/", "/scheduler/export/")
ITERATIONS, BLOCKS, EXPORT = PATHS


@pytest.fixture
def run(gateway: Any) -> Run:
    """10 iterations of epoch 4 and 12 of epoch 7."""
    older, newer = Run(4, 10), Run(7, 12, seed=1)
    for one in (older, newer):
        gateway.client.ledger.kept.update({(one.epoch, n): line for n, line in enumerate(one.lines, 1)})
    return newer


@pytest.fixture
def page(staff: User) -> Client:
    client = Client()
    client.force_login(staff)
    return client


def told(answer: Any) -> Any:
    assert answer.status_code == 200
    return orjson.loads(async_to_sync(streamed)(answer) if answer.streaming else answer.content)


async def streamed(answer: Any) -> bytes:
    return b"".join([part async for part in answer.streaming_content])


def refusal(answer: Any) -> tuple[int, str]:
    return answer.status_code, orjson.loads(answer.content)["error"]["code"]


@pytest.mark.parametrize("path", PATHS)
def test_staff_only(path: str, run: Run, alice: User, page: Client) -> None:
    client = Client()
    assert refusal(client.get(path)) == (401, "unauthorized")
    client.force_login(alice)
    assert refusal(client.get(path)) == (403, "forbidden")
    assert page.get(path).status_code == 200
    posted = page.post(path)
    assert (refusal(posted), posted["Allow"]) == ((405, "method_not_allowed"), "GET, HEAD")


def test_the_newest_ones(run: Run, page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterations, "NEWEST", 5)
    answer = told(page.get(ITERATIONS))
    assert (answer["engine"], answer["epoch"]) == ("engine-1", 7)
    assert [record["n"] for record in answer["records"]] == [8, 9, 10, 11, 12]
    assert answer["records"] == [orjson.loads(line) for line in run.lines[7:]]
    assert (answer["oldest"], answer["newest"]) == ([4, 1], [7, 12])
    assert answer["epochs"] == [[4, 1, 10], [7, 1, 12]]
    assert [record["epoch"] for record in told(page.get(ITERATIONS, {"epoch": 4}))["records"]] == [4] * 5


@pytest.mark.parametrize(
    ("asked", "numbers"),
    [
        ({"first": 3, "last": 6}, [3, 4, 5, 6]),
        ({"first": 10}, [10, 11, 12]),
        ({"first": 2, "epoch": 4}, [2, 3, 4, 5]),
        ({"last": 2}, [1, 2]),
        ({"last": 9}, [6, 7, 8, 9]),
        ({"first": 12, "last": 40}, [12]),
        ({"first": 500, "last": 501}, []),
        ({"first": 2**63 - 9}, []),
    ],
)
def test_spans(
    asked: dict[str, Any], numbers: list[int], run: Run, page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iterations, "NEWEST", 4)
    answer = told(page.get(ITERATIONS, {"engine": "engine-1", **asked}))
    assert [record["n"] for record in answer["records"]] == numbers


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        ({"first": "x"}, "bad_params", "first is 'x'"),
        ({"first": "-1"}, "bad_params", "first is '-1'"),
        ({"last": "²"}, "bad_params", "last is '²'"),
        ({"last": "9" * 30}, "bad_params", "whole number"),
        ({"first": 5, "last": 4}, "bad_params", "first is 5 and last is 4"),
        ({"first": 1, "last": 2001}, "bad_params", "2001 iterations; at most 2000"),
        ({"epoch": 5}, "not_found", "epoch 5 is kept; epochs from 4 to 7"),
        ({"engine": "other"}, "not_found", "engine 'other'"),
        ({"engine": "../" * 50}, "not_found", "engine '../"),
        ({"request": "r1"}, "not_found", "no such request"),
    ],
)
def test_what_cannot_be_answered(asked: dict[str, Any], code: str, words: str, run: Run, page: Client) -> None:
    answer = page.get(ITERATIONS, asked)
    assert refusal(answer)[1] == code
    assert words in answer.json()["error"]["message"]


def test_an_engine_that_has_done_nothing(gateway: Any, page: Client) -> None:
    answer = told(page.get(ITERATIONS, {"engine": "engine-1"}))
    assert (answer["records"], answer["oldest"], answer["newest"], answer["epochs"]) == ([], None, None, [])
    for path in (BLOCKS, EXPORT):
        assert refusal(page.get(path)) == (404, "not_found")


def test_no_engine_at_all(gateway: Any, page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def none() -> list[str]:
        return []

    monkeypatch.setattr(gateway.client.ledger, "engines", none)
    answer = page.get(ITERATIONS)
    assert (refusal(answer), answer.json()["error"]["message"]) == ((404, "not_found"), "No engine has run here yet.")


@pytest.mark.parametrize("error", UNREACHABLE)
def test_without_a_broker(error: type[Exception], gateway: Any, page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away() -> list[str]:
        raise error("/run/secret.sock")

    monkeypatch.setattr(gateway.client.ledger, "engines", away)
    for path in PATHS:
        answer = page.get(path)
        assert refusal(answer) == (503, "engine_unavailable")
        assert b"secret" not in answer.content


def test_the_map_of_blocks(run: Run, page: Client) -> None:
    for n in (1, 7, 12):
        answer = told(page.get(BLOCKS, {"epoch": 7, "n": n}))
        assert answer == {"engine": "engine-1", "epoch": 7, "n": n, **run.drawn(n)}
    assert told(page.get(BLOCKS))["n"] == 12
    for n in (0, 13):
        answer = page.get(BLOCKS, {"n": n})
        assert refusal(answer) == (404, "not_found")
        assert f"iteration {n} are not kept; of this epoch there are 1 to 12" in answer.json()["error"]["message"]


def test_a_file_of_records(run: Run, page: Client) -> None:
    answer = page.get(EXPORT, {"first": 2, "last": 11})
    assert answer["Content-Disposition"] == 'attachment; filename="batchscope-engine-1-7-2-11.json"'
    assert answer["Content-Type"] == "application/json"
    file = told(answer)
    assert (file["engine"], file["epoch"]) == ("engine-1", 7)
    assert file["records"] == [orjson.loads(line) for line in run.lines[1:11]]


def test_a_file_of_an_engine_of_any_name_has_a_name_without_a_path(
    gateway: Any, page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(7, 3)
    gateway.client.ledger.kept.update({(7, n): line for n, line in enumerate(run.lines, 1)})

    async def engines() -> list[str]:
        return ["../../x y"]

    monkeypatch.setattr(gateway.client.ledger, "engines", engines)
    name = page.get(EXPORT, {"engine": "../../x y"})["Content-Disposition"]
    assert name == 'attachment; filename="batchscope-.._.._x_y-7-1-3.json"'


def test_a_trace(run: Run, page: Client) -> None:
    trace = told(page.get(EXPORT, {"format": "perfetto", "first": 2, "last": 11}))
    numbers = {event["args"]["n"] for event in trace["traceEvents"] if event["ph"] == "X"}
    assert numbers == set(range(2, 12))


def test_what_no_file_can_be(run: Run, page: Client) -> None:
    for asked in ({"format": "pickle"}, {"first": 1, "last": 20_001}, {"first": 3, "last": 2}):
        assert refusal(page.get(EXPORT, asked)) == (400, "bad_params")


def test_where_a_request_ran(run: Run, gateway: Any, page: Client, alice: User) -> None:
    details = {"engine": "engine-2", "epoch": 3, "first_iteration": 17, "last_iteration": 40}
    row = InferenceRequest.objects.create(owner=alice, prompt="x", seed=1, receipt={"details": details})
    answer = told(page.get(ITERATIONS, {"request": str(row.pk)}))
    assert answer == {"engine": "engine-2", "epoch": 3, "first": 17, "last": 40}


@pytest.mark.parametrize("details", [None, [1], {}, {"first_iteration": 17}, {"engine": "e", "epoch": 3}])
def test_where_a_request_ran_is_not_told_by_a_receipt_of_another_form(
    details: Any, run: Run, page: Client, alice: User
) -> None:
    row = InferenceRequest.objects.create(owner=alice, prompt="x", seed=1, receipt={"total": 1.0, "details": details})
    assert refusal(page.get(ITERATIONS, {"request": str(row.pk)})) == (404, "not_found")


def test_where_a_request_runs(gateway: Any, page: Client, alice: User) -> None:
    from inference.serving.messages import EngineStatus

    row = InferenceRequest.objects.create(owner=alice, prompt="x", seed=1)
    answer = page.get(ITERATIONS, {"request": str(row.pk)})
    assert refusal(answer) == (404, "not_found")
    assert "in no iteration that is kept" in answer.json()["error"]["message"]
    gateway.client.statuses = [EngineStatus("engine-1", 1, "ready", True, 0.0)]
    mine = {"epoch": 9, "rows": [{"request_id": "other"}, {"request_id": str(row.pk)}]}
    gateway.client.history = [
        {"n": 3, **mine, "epoch": 8},
        {"n": 1, "epoch": 9, "rows": []},
        {"n": 2, **mine},
        {"n": 3, **mine},
        {"n": 4, "epoch": 9, "rows": []},
    ]
    answer = told(page.get(ITERATIONS, {"request": str(row.pk)}))
    assert answer == {"engine": "engine-1", "epoch": 9, "first": 2, "last": 3}
