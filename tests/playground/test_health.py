"""Health means progress (R7)."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from django.test import AsyncClient

from inference.serving.messages import EngineStatus
from playground.drain import get_drain
from playground.http.health import verdict

NOW = 1000.0


def engine(name: str = "a", state: str = "ready", busy: bool = False, progress_at: float = NOW) -> EngineStatus:
    return EngineStatus(name=name, pid=1, state=state, busy=busy, progress_at=progress_at)


@pytest.mark.parametrize(
    ("engines", "expected"),
    [
        ([], "no_engine"),
        ([engine()], "ok"),
        ([engine(progress_at=0)], "ok"),  # idle for long
        ([engine(busy=True, progress_at=NOW - 9)], "ok"),
        ([engine(busy=True, progress_at=NOW - 11)], "hung"),
        # Paused or slow, its loop goes on telling that all is well; where that has ended, it hangs.
        ([replace(engine(busy=True, progress_at=NOW - 1), paused=True)], "ok"),
        ([replace(engine(busy=True, progress_at=NOW - 1), slow_ms=60_000.0)], "ok"),
        ([replace(engine(busy=True, progress_at=NOW - 11), paused=True)], "hung"),
        ([engine(state="loading", progress_at=0)], "loading"),
        ([engine(state="failed")], "failed"),
        ([replace(engine(busy=True), draining=True)], "engine_draining"),  # it takes nothing new
        ([replace(engine(busy=True, progress_at=NOW - 11), draining=True)], "hung"),
        ([replace(engine(), draining=True), engine("b")], "ok"),
        ([engine(state="failed"), engine("b", state="loading")], "loading"),
        ([engine(busy=True, progress_at=0), engine("b")], "ok"),
    ],
)
def test_verdict(engines: list[EngineStatus], expected: str) -> None:
    assert verdict(engines, NOW, hang_timeout=10.0) == expected


async def test_health_over_http(gateway: Any) -> None:
    client = AsyncClient()
    empty = await client.get("/health")
    assert (empty.status_code, empty.json()) == (503, {"status": "unavailable", "reason": "no_engine"})
    gateway.client.statuses = [engine(progress_at=time.time())]
    served = await client.get("/health")
    assert (served.status_code, served.json()) == (200, {"status": "ok"})
    assert (await client.head("/health")).status_code == 200
    assert (await client.post("/health")).status_code == 405


async def test_a_broker_that_is_away_is_unhealthy_but_the_process_lives(gateway: Any) -> None:
    async def away() -> None:
        raise ConnectionError("no route to /tmp/secret.sock")

    gateway.client.engines = away
    client = AsyncClient()
    answer = await client.get("/health")
    assert (answer.status_code, answer.json()["reason"]) == (503, "no_broker")
    assert b"secret" not in answer.content
    assert (await client.get("/health/live")).status_code == 200
    assert (await client.get("/health/ready")).status_code == 200


async def test_a_web_process_that_drains_is_not_ready_and_lives(gateway: Any) -> None:
    gateway.client.statuses = [engine(progress_at=time.time())]
    await get_drain().run([])
    client = AsyncClient()
    for path in ("/health", "/health/ready"):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()["reason"]) == (503, "draining")
    assert (await client.get("/health/live")).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/health/live", "/metrics", "/v1/openapi.json"])
async def test_what_programs_read_has_no_forms(path: str) -> None:
    answer = await AsyncClient(enforce_csrf_checks=True).post(path)
    assert (answer.status_code, answer["Allow"]) == (405, "GET, HEAD")
    assert answer.json()["error"]["code"] == "method_not_allowed"
