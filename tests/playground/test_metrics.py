"""GET /metrics: who may read it, and that what it says is what was counted, under names that the docs have."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from channels.db import database_sync_to_async
from django.contrib.auth.models import Group, User
from django.test import AsyncClient
from prometheus_client.parser import text_string_to_metric_families
from redis.exceptions import ConnectionError

from inference.serving.client import BUCKETS, SEPARATOR, WEB, Finish, Tally
from inference.serving.messages import EngineStatus
from playground import metrics
from playground.access.keys import create_key, revoke
from playground.metrics.exposition import Reading, exposition
from playground.metrics.families import COUNTED, GAUGES, PREFIX

DOCS = Path(__file__).resolve().parents[2] / "docs"
NOW = 1_000.0
ENGINE = EngineStatus(
    "engine-1", 7, "ready", True, NOW - 1, model="toy", running=3, waiting=2, kv={"used": 3, "free": 5, "cached": 2},
    epoch=900,
)  # fmt: skip


def reading(engines=(), totals=None, gauges=(), unclaimed=0):
    return Reading(engines, totals or {}, gauges, unclaimed, NOW, 10.0)


def samples(text):
    """Values by name and labels, as Prometheus reads them."""
    if isinstance(text, bytes):
        text = text.decode()
    return {
        (sample.name.removeprefix(PREFIX), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def shown(*args, **kwargs):
    return samples(exposition(reading(*args, **kwargs))[0])


def labels(**given):
    return tuple(sorted(given.items()))


class FakeBeat:
    def __init__(self, answer):
        self.answer = answer

    async def read(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def beating(gateway, monkeypatch):
    from playground.http import metrics as view

    gateway.beat = FakeBeat(reading([ENGINE]))
    monkeypatch.setattr(view, "get_gateway", lambda: gateway)
    return gateway


async def ask(secret=None, session_of=None):
    client = AsyncClient()
    if session_of is not None:
        await client.aforce_login(session_of)
    headers = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"}  # Prometheus'
    if secret is not None:
        headers["Authorization"] = f"Bearer {secret}"
    return await client.get("/metrics", headers=headers)


def an_observer():
    watcher = User.objects.create_user("watcher")
    watcher.groups.add(Group.objects.get(name="observers"))
    return watcher


@pytest.mark.django_db(transaction=True)
async def test_who_may_read_it(beating, alice, staff):
    made = database_sync_to_async(create_key)
    watcher = await database_sync_to_async(an_observer)()
    _, scraper = await made(staff, "scraper", ["metrics"])
    _, generates = await made(staff, "program", ["generate", "scheduler"])
    _, of_alice = await made(alice, "too much", ["metrics"])  # a key gives no right that its account lacks
    gone, revoked = await made(staff, "old", ["metrics"])
    await database_sync_to_async(revoke)(gone)
    statuses = [(await ask(secret)).status_code for secret in (None, "bs-nothing", revoked, generates, of_alice)]
    assert statuses == [401, 401, 401, 403, 403]
    assert (await ask(session_of=alice)).status_code == 403
    assert (await ask("bs-nothing", session_of=staff)).status_code == 401  # a key that was sent is what counts
    for answer in (await ask(scraper), await ask(session_of=staff), await ask(session_of=watcher)):
        assert (answer.status_code, answer["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert samples(answer.content)["num_requests_running", labels(engine="engine-1", model_name="toy")] == 3
    assert (await AsyncClient().post("/metrics")).status_code == 405


@pytest.mark.django_db(transaction=True)
async def test_a_broker_that_is_away(beating, staff):
    beating.beat.answer = ConnectionError("no route to /tmp/secret.sock")
    client = AsyncClient()
    await client.aforce_login(staff)
    answer = await client.get("/metrics")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_unavailable")
    assert b"secret" not in answer.content


def test_gauges():
    values = shown([ENGINE], gauges=[{"chat": 2, "scheduler": 1}, {"chat": 5}], unclaimed=4)
    own = {"engine": "engine-1", "model_name": "toy"}
    assert values["num_requests_waiting", labels(**own)] == 2
    assert values["kv_blocks", labels(**own, state="cached")] == 2
    assert values["engine_state", labels(**own, state="ready")] == 1
    assert values["engine_state", labels(**own, state="hung")] == 0
    assert values["engine_progress_age_seconds", labels(**own)] == 1
    assert values["sockets_open", labels(kind="chat")] == 7
    assert values["web_processes", ()] == 2
    assert values["requests_unclaimed", ()] == 4


def test_an_engine_that_hangs_or_is_gone():
    hung = EngineStatus("engine-1", 7, "ready", True, NOW - 11, model="toy")
    assert shown([hung])["engine_state", labels(engine="engine-1", model_name="toy", state="hung")] == 1
    gone = shown(totals={"engine-1": ("toy", {"generation_tokens_total": 12})})
    assert gone["generation_tokens_total", labels(engine="engine-1", model_name="toy")] == 12
    assert not [name for name, _ in gone if name == "num_requests_running"]


def test_a_histogram_is_cumulative():
    tally = Tally()
    for seconds in (0.004, 0.02, 0.021, 900.0):
        tally.observe("inter_token_latency_seconds", seconds)
    values = shown([ENGINE], {"engine-1": ("toy", tally.take().values)})
    own = {"engine": "engine-1", "model_name": "toy"}
    name = "inter_token_latency_seconds"
    found = {le: values[f"{name}_bucket", labels(**own, le=le)] for le in ("0.0025", "0.005", "0.025", "80.0", "+Inf")}
    assert found == {"0.0025": 0, "0.005": 1, "0.025": 3, "80.0": 3, "+Inf": 4}
    assert values[f"{name}_count", labels(**own)] == 4
    assert values[f"{name}_sum", labels(**own)] == pytest.approx(900.045)


def test_what_the_web_counts_of_an_engine_has_that_engines_labels(monkeypatch):
    monkeypatch.setattr(metrics, "tally", Tally())
    receipt = {"queue": 250.0, "prefill": 100.0, "decode": 640.0, "deliver": 10.0, "total": 1000.0}
    finish = Finish(
        "r", 4, "stop", prompt_tokens=12, completion_tokens=5, engine="engine-1", started_at=1.0, first_token_at=2.0,
        finished_at=4.0,
    )  # fmt: skip
    metrics.requests_ended([(finish, receipt), (Finish("q", 1, "error", error_code="bad_params"), {})])
    metrics.refused("queue_full")
    values = shown([ENGINE], {WEB: ("", metrics.tally.take().values)})
    own = {"engine": "engine-1", "model_name": "toy"}
    nobody = {"engine": "", "model_name": ""}
    assert values["request_success_total", labels(**own, finished_reason="stop")] == 1
    assert values["request_success_total", labels(**nobody, finished_reason="error")] == 1
    assert values["request_failure_total", labels(**nobody, code="bad_params")] == 1
    assert values["e2e_request_latency_seconds_sum", labels(**own)] == 1
    assert values["request_inference_time_seconds_sum", labels(**own)] == 0.75
    assert values["request_decode_time_seconds_sum", labels(**own)] == 2
    assert values["request_time_per_output_token_seconds_sum", labels(**own)] == 0.5
    assert values["request_time_seconds_total", labels(**own, part="decode")] == 0.64
    assert values["request_prompt_tokens_sum", labels(**own)] == 12
    assert values["errors_total", labels(code="queue_full")] == 1


def test_fields_of_another_version_are_left_out():
    odd = {"unheard_of_total": 1, SEPARATOR.join(("errors_total", "a", "b")): 1, "errors_total": 2}
    assert not [name for name, _ in shown(totals={WEB: ("", odd)}) if name in ("unheard_of_total", "errors_total")]


VLLM = """
num_requests_running num_requests_waiting kv_cache_usage_perc prefix_cache_queries_total prefix_cache_hits_total
num_preemptions_total prompt_tokens_total generation_tokens_total iteration_tokens_total request_success_total
request_prompt_tokens request_generation_tokens time_to_first_token_seconds inter_token_latency_seconds
e2e_request_latency_seconds request_queue_time_seconds request_inference_time_seconds request_prefill_time_seconds
request_decode_time_seconds request_time_per_output_token_seconds
"""
ITL_OF_VLLM = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)


def test_a_board_made_for_vllm_maps_over():
    """Its names, labels and buckets, once the prefix is replaced."""
    families = {family.name: family for family in (*GAUGES, *COUNTED)}
    for name in VLLM.split():
        assert {"model_name", "engine"} <= set(families[name].all_labels), name
    assert families["request_success_total"].labels == ("finished_reason",)
    assert set(ITL_OF_VLLM) <= set(BUCKETS["inter_token_latency_seconds"])
    assert {0.3, 1.0, 60.0, 7680.0} <= set(BUCKETS["e2e_request_latency_seconds"])


# The documents


def names():
    """Every metric, as a query names it."""
    found = set()
    for family in (*GAUGES, *COUNTED):
        ends = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        found |= {PREFIX + family.name + end for end in ends}
    return found


def test_the_page_has_every_metric():
    page = (DOCS / "metrics.md").read_text()
    for family in (*GAUGES, *COUNTED):
        assert f"`{family.name}`" in page, family.name
    named = set(re.findall(r"^\| `([a-z0-9_]+)` \|", page, re.MULTILINE))
    assert named == {family.name for family in (*GAUGES, *COUNTED)}


def queries():
    board = json.loads((DOCS / "grafana" / "batchscope.json").read_text())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    return board, {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in panels}


def test_the_board_asks_for_metrics_that_there_are():
    _, asked = queries()
    used = {name for exprs in asked.values() for expr in exprs for name in re.findall(r"batchscope:[a-z0-9_]+", expr)}
    assert used <= names()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_the_boards_queries_are_promql(tmp_path):
    _, asked = queries()
    exprs = [expr for each in asked.values() for expr in each]
    filled = [re.sub(r"\$(model_name|engine)", ".*", expr).replace("$__rate_interval", "5m") for expr in exprs]
    rules = [{"record": f"r{n}", "expr": expr} for n, expr in enumerate(filled)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", str(tmp_path / "rules.yml")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"{len(exprs)} rules found" in done.stdout


def test_the_board_shows_every_metric():
    board, asked = queries()
    text = " ".join(expr for exprs in asked.values() for expr in exprs)
    missing = [family.name for family in (*GAUGES, *COUNTED) if PREFIX + family.name not in text]
    assert missing == []
    assert all(asked.values())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
