"""The page of one request: where its time went, who shared the batch, and nothing that breaks it."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from support.admin import MATE, RECEIPT, AdminGateway, add, address, viewer

from inference.serving.client import UNREACHABLE
from playground import rows
from playground.admin import engines
from playground.admin.timeline import beside, iterations_lane, parts_lane, receipt_lines, ticks
from playground.figures import figures_of, first_token_ms, wait_reason
from playground.models import InferenceRequest


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> AdminGateway:
    fake = AdminGateway()
    monkeypatch.setattr(engines, "get_gateway", lambda: fake)
    return fake


def record(n: int, started_at: float, *rows: tuple[str, str]) -> dict[str, Any]:
    times = {"schedule": 1.0, "forward": 7.0, "sample": 1.0, "commit": 1.0}
    return {"n": n, "epoch": 7, "started_at": started_at, **times,
            "rows": [{"request_id": name, "kind": kind} for name, kind in rows]}  # fmt: skip


def test_the_page_has_the_receipt_with_shares(alice: User) -> None:
    row = add(alice, RECEIPT, attempts=3, ttft_ms=350.0)
    html = viewer().get(address(row)).content.decode()
    for part in ("in queue", "no seat free", "its own prefill", "for batch-mates", "preempted", "delivery"):
        assert part in html
    for number in ("250 ms", "25.0 %", "200 ms", "20.0 %", "150 ms", "1.00 s", "33.5 ms", "350 ms"):
        assert number in html
    for n in (102, 104):
        assert f'href="/scheduler/?engine=engine-1&amp;epoch=7&amp;n={n}"' in html
    assert f'href="/scheduler/?request={row.pk}"' in html
    assert MATE in html
    assert f'href="{address(row)}"' not in html.replace("csrf", "")
    assert "<svg" in html
    assert " style=" not in html


def test_who_cost_it_most_is_linked_while_it_is_there(alice: User, bob: User) -> None:
    row = add(alice, RECEIPT)
    mate = add(bob, RECEIPT, id=MATE)
    html = viewer().get(address(row)).content.decode()
    assert f'href="{address(mate)}"' in html
    assert "bob" in html


def test_who_ran_beside_it_comes_from_the_ledger(alice: User, bob: User, gateway: AdminGateway) -> None:
    row = add(alice, RECEIPT)
    other = add(bob, RECEIPT)
    start = row.created_at.timestamp()
    me, it = str(row.pk), str(other.pk)
    gateway.client.ledger.kept = [
        record(102, start + 0.25, (me, "prefill"), (it, "decode")),
        record(103, start + 0.30, (me, "decode"), (it, "decode")),
        record(104, start + 0.50, (me, "decode")),
    ]
    html = viewer().get(address(row)).content.decode()
    assert gateway.client.ledger.asked == [("engine-1", 7, 102, 104)]
    assert f'href="{address(other)}"' in html
    assert re.search(rf'{it}">.*?<td class="number">2</td>', html, re.DOTALL)
    assert "prefill 102: 10.0 ms" in html


def test_of_many_batch_mates_the_nearest_are_shown(alice: User, gateway: AdminGateway) -> None:
    row = add(alice, RECEIPT)
    crowd = [(str(uuid.uuid4()), "decode") for _ in range(20)]
    start = row.created_at.timestamp()
    gateway.client.ledger.kept = [record(102, start, (str(row.pk), "decode"), *crowd)]
    html = viewer().get(address(row)).content.decode()
    assert [name in html for name, _ in crowd] == [True] * 11 + [False] * 9  # after the one that cost most
    assert "and 9 more" in html


@pytest.mark.parametrize("error", UNREACHABLE)
def test_without_the_ledger_the_page_has_what_the_receipt_tells(
    error: type[Exception], alice: User, gateway: AdminGateway
) -> None:
    async def away(*_: Any) -> Any:
        raise error("away")

    gateway.client.ledger.records = away  # type: ignore[method-assign]
    html = viewer().get(address(add(alice, RECEIPT))).content.decode()
    assert MATE in html
    assert "at their times" not in html


@pytest.mark.parametrize(
    "receipt",
    [
        {},
        {"queue": 1.0, "prefill": 2.0, "decode": 3.0, "total": 6.0},
        {"total": 0.0},
        {"queue": 5.0, "total": 5.0, "details": None},
        {"queue": {"no_seat": 5.0}, "total": 5.0, "details": {"queue": None, "batchmates": [{"ms": 1.0}, "x"]}},
        {**RECEIPT, "details": {**RECEIPT["details"], "batchmates": [{"request_id": "no id", "ms": 1.0}]}},
    ],
)
def test_receipts_of_any_form_have_a_page(receipt: dict[str, Any], alice: User, client: Client, root: User) -> None:
    client.force_login(root)
    row = add(alice, receipt)
    assert client.get(address(row)).status_code == 200
    assert client.get("/admin/playground/inferencerequest/").status_code == 200


@pytest.mark.parametrize("state", InferenceRequest.State.values)
def test_a_request_of_any_state_has_a_page(state: str, alice: User, client: Client, root: User) -> None:
    client.force_login(root)
    row = add(alice, prompt="hi", state=state)
    html = client.get(address(row)).content.decode()
    assert ("data-pulse" in html) == (state in ("accepted", "running"))
    assert ("It is not over yet" in html) == (state in ("accepted", "running"))


def test_parts_lie_one_after_another_and_fill_the_picture() -> None:
    marks = parts_lane(RECEIPT)
    assert [mark.kind for mark in marks] == ["queue", "prefill", "decode", "batchmates", "preempted", "deliver"]
    ends = [mark.x + mark.width for mark in marks]
    assert [mark.x for mark in marks] == pytest.approx([0.0, *ends[:-1]], abs=0.01)
    assert ends[-1] == pytest.approx(100.0, abs=0.01)
    assert [mark.label for mark in marks if mark.kind == "preempted"] == [""]  # too narrow for its name
    assert [tick.label for tick in ticks(1000.0)] == ["0", "250 ms", "500 ms", "750 ms", "1.00 s"]


def test_a_sliver_is_seen_and_nothing_leaves_the_picture() -> None:
    marks = parts_lane({"queue": 0.001, "prefill": 900.0, "decode": 300.0, "total": 1000.0})
    assert marks[0].width > 0.1
    assert max(mark.x + mark.width for mark in marks) <= 100.0


def test_the_receipts_reasons_stand_under_the_queue_dearest_first() -> None:
    lines = receipt_lines(RECEIPT)
    assert [(line.kind, line.ms, line.depth) for line in lines[:5]] == [
        ("queue", 250.0, 0),
        ("queue", 200.0, 1),
        ("queue", 40.0, 1),
        ("queue", 10.0, 1),
        ("prefill", 100.0, 0),
    ]


def test_iterations_are_joined_where_nothing_lies_between() -> None:
    records = [
        record(1, 10.00, ("a", "prefill")),
        record(2, 10.01, ("a", "decode"), ("b", "decode")),
        record(3, 10.02, ("a", "decode"), ("b", "decode")),
        record(4, 10.03, ("b", "prefill")),
        record(5, 10.90, ("a", "decode")),
    ]
    stretches = iterations_lane("a", records, 9.5, 2000.0)
    assert [(s.kind, s.x, s.title.partition(":")[0]) for s in stretches] == [
        ("prefill", 25.0, "prefill 1"),
        ("decode", 25.5, "decode 2-3"),
        ("decode", 70.0, "decode 5"),
    ]
    assert stretches[1].width == pytest.approx(1.0)
    assert beside("a", records) == [("b", 2)]


def test_figures_come_from_the_receipt() -> None:
    assert figures_of(RECEIPT) == {
        "wait_reason": "no_seat", "queue_ms": 250.0, "total_ms": 1000.0, "caused_ms": 33.5, "preemptions": 2
    }  # fmt: skip
    assert (first_token_ms({"details": {"ttft": 66.5}}), first_token_ms({"queue": 3.0})) == (66.5, 0.0)
    assert wait_reason({"accept": 12.0, "behind": 0.4}) == "behind"
    assert wait_reason({"accept": 5000.0, "behind": 0.4}) == "accept"
    assert wait_reason({"accept": 12.0}) == wait_reason({}) == wait_reason(None) == ""


def test_the_gateway_writes_the_figures_with_the_final_state(alice: User) -> None:
    row = add(alice, state="running")
    accepted = row.created_at.timestamp()
    finish = rows.Finish(
        str(row.pk), 3, "stop", receipt=RECEIPT, first_token_at=accepted + 0.4, finished_at=accepted + 1.0
    )
    rows.apply([], [rows.Outcome(finish, "answer", 1)])
    row.refresh_from_db()
    assert (row.wait_reason, row.queue_ms, row.total_ms, row.caused_ms) == (
        "no_seat",
        250.0,
        980.0,
        33.5,
    )  # not delivered yet
    assert row.ttft_ms == pytest.approx(400.0, abs=1.0)
    rows.correct({str(row.pk): RECEIPT})
    row.refresh_from_db()
    assert row.total_ms == 1000.0
    cancelled = add(alice, state="accepted")
    rows.apply([], [rows.Outcome(rows.Finish(str(cancelled.pk), 1, "cancelled"), "", 0)])
    cancelled.refresh_from_db()
    assert (cancelled.ttft_ms, cancelled.wait_reason) == (0.0, "")
    assert cancelled.total_ms > 0.0
