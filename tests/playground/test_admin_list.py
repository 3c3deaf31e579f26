"""The list of requests: found, filtered and sorted, and no dearer with a long history."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from support.admin import RECEIPT, REQUESTS, add, viewer

from playground.admin import paging
from playground.admin.search import search_requests
from playground.admin.words import duration
from playground.models import InferenceRequest

ROW = re.compile(r'<th class="field-request"><a href="[^"]*/([0-9a-f-]{36})/change/')
SCAN = re.compile(r"SCAN playground_inferencerequest(?! USING)")
PLANS = [
    {},
    {"o": "-2"},
    {"o": "-3"},
    {"o": "-5"},
    {"o": "-6"},
    {"o": "2"},
    {"o": "10"},
    {"state__exact": "failed"},
    {"finish_reason": "error"},
    {"wait_reason": "no_seat"},
    {"owner": "1"},
    {"within": "1h"},
    {"q": "0b5c1f9e-0000-4000-8000-000000000000"},
]


def listed(client: Client, **query: str) -> list[str]:
    return ROW.findall(client.get(REQUESTS, query).content.decode())


def named(*rows: InferenceRequest) -> list[str]:
    return [str(row.pk) for row in rows]


def receipt(**values: Any) -> dict[str, Any]:
    details = {**RECEIPT["details"], **values.pop("details", {})}
    return {**RECEIPT, **values, "details": details}


@pytest.fixture
def rooted(root: User, client: Client) -> Client:
    client.force_login(root)
    return client


def test_orders_with_the_greatest_first(rooted: Client, alice: User) -> None:
    slow = add(alice, receipt(total=9000.0, queue=1.0), ttft_ms=100.0)
    waited = add(alice, receipt(total=8000.0, queue=7000.0), ttft_ms=50.0)
    late = add(alice, receipt(total=10.0, queue=2.0), ttft_ms=5000.0)
    cost = add(alice, receipt(total=11.0, queue=3.0, details={"caused": 900.0}), ttft_ms=1.0)
    html = rooted.get(REQUESTS).content.decode()
    links = dict(re.findall(r'<a href="\?(o=-\d+)">([^<]+)</a>', html))
    by_title = {title: query.partition("=")[2] for query, title in links.items()}
    assert set(by_title) == {"Slowest first", "Longest wait", "Latest first token", "Cost others most"}
    assert listed(rooted) == named(cost, late, waited, slow)
    assert listed(rooted, o=by_title["Slowest first"]) == named(slow, waited, cost, late)
    assert listed(rooted, o=by_title["Longest wait"]) == named(waited, cost, late, slow)
    assert listed(rooted, o=by_title["Latest first token"]) == named(late, slow, waited, cost)
    assert listed(rooted, o=by_title["Cost others most"])[0] == str(cost.pk)


def test_filters(rooted: Client, alice: User, bob: User) -> None:
    first = add(alice, receipt(details={"queue": {"no_seat": 5.0, "accept": 20.0}}))
    other = add(bob, receipt(details={"queue": {"paused": 9.0, "no_kv": 3.0}}), state="failed", finish_reason="error")
    quick = add(bob, {"queue": 1.0, "total": 9.0}, error_code="numerical_error")
    assert listed(rooted, state__exact="failed") == named(other)
    assert listed(rooted, finish_reason="error") == named(other)
    assert listed(rooted, owner=str(alice.pk)) == named(first)
    assert listed(rooted, wait_reason="no_seat") == named(first)
    assert listed(rooted, wait_reason="paused") == named(other)
    assert listed(rooted, wait_reason="no_kv") == []
    InferenceRequest.objects.filter(pk=quick.pk).update(created_at=timezone.now() - timedelta(hours=5))
    assert quick.pk not in listed(rooted, within="1h")
    assert len(listed(rooted, within="1h")) == 2
    assert len(listed(rooted, within="1d")) == 3
    # What makes no sense filters nothing, and breaks nothing.
    assert len(listed(rooted, owner="x' OR 1", within="never", wait_reason="?")) == 3


@pytest.mark.parametrize("term", ["alice", "numerical", "my label", "{id}", "{start}", "{START}"])
def test_search(term: str, rooted: Client, alice: User, bob: User) -> None:
    row = add(alice, RECEIPT, error_code="numerical_error", ref="my label")
    add(bob, RECEIPT)
    start = str(row.pk)[:13]
    assert listed(rooted, q=term.format(id=row.pk, start=start, START=start.upper())) == named(row)


def test_search_in_texts_finds_every_script(alice: User) -> None:
    row = add(alice, messages=[{"role": "user", "content": '鹿特丹 said "yes"'}], answer="Ein Bär")
    for term in ("鹿特丹", 'said "yes"', "ein b"):
        assert list(search_requests(InferenceRequest.objects.all(), term, in_texts=True)) == [row]
        assert not search_requests(InferenceRequest.objects.all(), term, in_texts=False).exists()


def test_texts_are_not_fetched_for_the_list(rooted: Client, alice: User) -> None:
    add(alice, RECEIPT, messages=[{"role": "user", "content": "x"}])
    with CaptureQueriesContext(
        connection,
    ) as queries:
        listed(rooted)
    selects = [query["sql"] for query in queries if "playground_inferencerequest" in query["sql"]]
    assert selects
    assert not [sql for sql in selects if '"answer"' in sql or '"messages"' in sql or '"prompt"' in sql]


@pytest.mark.parametrize("query", PLANS, ids=lambda query: json.dumps(query))
def test_every_view_of_the_list_goes_by_an_index(query: dict[str, str], rooted: Client, alice: User) -> None:
    """SQLite's own plan: no table is read from end to end, and only ties are sorted."""
    if connection.vendor != "sqlite":
        pytest.skip("the plans of SQLite")
    add(alice, RECEIPT)
    with CaptureQueriesContext(connection) as queries:
        rooted.get(REQUESTS, query)
    selects = [
        q["sql"] for q in queries if q["sql"].startswith("SELECT") and '"playground_inferencerequest"' in q["sql"]
    ]
    assert selects
    for sql in selects:
        plan = _plan(sql)
        assert not SCAN.search(plan), (sql, plan)
        assert "TEMP B-TREE FOR ORDER BY" not in plan, (sql, plan)


def _plan(sql: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
        return "\n".join(str(line[-1]) for line in cursor.fetchall())


def test_the_number_of_queries_does_not_grow(rooted: Client, alice: User) -> None:
    counts = []
    for _ in range(2):
        for _ in range(5):
            add(alice, RECEIPT)
        with CaptureQueriesContext(connection) as queries:
            assert listed(rooted)
        counts.append(len(queries))
    assert counts[0] == counts[1] <= 8


def test_a_long_history_is_not_counted_to_its_end(rooted: Client, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "MOST_COUNTED", 3)
    for _ in range(5):
        add(alice, RECEIPT)
    with CaptureQueriesContext(connection) as queries:
        html = rooted.get(REQUESTS).content.decode()
    assert "the first 3 requests; filters find the others" in html
    counts = [q["sql"] for q in queries if "COUNT(" in q["sql"]]
    assert len(counts) == 1
    assert "LIMIT 3" in counts[0]
    assert "the first" not in rooted.get(REQUESTS, {"state__exact": "failed"}).content.decode()


def test_a_viewer_without_more_rights_has_the_list_too(alice: User) -> None:
    row = add(alice, RECEIPT, ref="my label")
    client = viewer()
    html = client.get(REQUESTS).content.decode()
    for part in (str(row.pk), "1.00 s", "250 ms", "no seat free", "33.5 ms"):
        assert part in html
    assert listed(client, q="my label") == named(row)


@pytest.mark.parametrize(
    ("ms", "words"),
    [(0.0, "0.00 ms"), (0.42, "0.42 ms"), (38.14, "38.1 ms"), (412.4, "412 ms"), (999.4, "999 ms"), (999.6, "1.00 s"),
     (1520.0, "1.52 s"), (59_949, "59.9 s"), (59_960, "1 min 0 s"), (185_000, "3 min 5 s")],
)  # fmt: skip
def test_durations(ms: float, words: str) -> None:
    assert duration(ms) == words
