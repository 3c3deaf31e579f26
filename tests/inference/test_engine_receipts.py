"""Receipts of many requests under load: whatever happened to one, the parts of its receipt add up to its time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
from support.carrying import random_jobs, tight_settings
from support.clock import BEGIN, Clock, at_once
from support.late import made_late
from support.toy import VOCAB, ToyModel, toy_engine

from inference.config import POLICIES, SamplingParams
from inference.engine import Engine
from inference.scheduling.outputs import RequestFinish
from inference.scheduling.receipt import PARTS, Past
from inference.scheduling.request import FinishReason


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock.installed(monkeypatch)


def load_of(engine: Engine, clock: Clock, seed: int, count: int) -> dict[str, tuple[float, RequestFinish, float]]:
    """A load with prefixes, cancels and several users; by request when it came, its finish, and when that was told."""
    draw = random.Random(seed)
    jobs = random_jobs(draw, range(1, VOCAB), count, 60, stop=("qj", "dd"))
    ends: dict[str, tuple[float, RequestFinish, float]] = {}
    came: dict[str, float] = {}
    iteration = 0
    while engine.has_work or len(came) < count:
        for number, job in enumerate(jobs):
            if job.arrives == iteration:
                job.prompt[: draw.choice([0, 8])] = [3] * 8
                name = engine.add_request(job.prompt[:30], job.params, request_id=f"r{number}", user=f"u{number % 4}")
                came[name] = clock.ms
            if job.leaves == iteration:
                engine.cancel(f"r{number}")
        step = engine.step()
        iteration += 1
        for finish in step.finishes:
            ends[finish.request_id] = came[finish.request_id], finish, clock.ms
    return ends


def check_receipt(came: float, finish: RequestFinish, told: float) -> None:
    receipt = finish.receipt
    total, details = receipt["total"], receipt["details"]
    assert min(receipt[part] for part in PARTS) >= 0.0
    assert sum(receipt[part] for part in PARTS) == pytest.approx(total, rel=0.01, abs=0.01)
    assert sum(details["queue"].values()) == pytest.approx(receipt["queue"], abs=0.01)
    ended = (finish.finished_at - BEGIN) * 1000
    assert total == pytest.approx(ended - came, rel=0.01, abs=0.2)
    assert came + total <= told + 0.1
    shown = sum(one["ms"] for one in details["batchmates"])
    assert shown <= receipt["batchmates"] + 0.01
    assert [one["ms"] for one in details["batchmates"]] == sorted(
        (one["ms"] for one in details["batchmates"]), reverse=True
    )
    assert (details["ttft"] is None) == (finish.completion_tokens == 0)
    if details["ttft"] is not None:
        assert details["ttft"] == pytest.approx((finish.first_token_at - BEGIN) * 1000 - came, abs=0.2)
        assert 0 < details["first_iteration"] <= details["last_iteration"]


@pytest.mark.parametrize("device", [at_once, made_late])
@pytest.mark.parametrize("drafts", [0, 4])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_parts_of_every_receipt_add_up(
    clock: Clock, device: Callable[[Engine], Engine], policy: str, drafts: int
) -> None:
    """504 requests over all cases: too few blocks and seats, chunks, prefixes, users at their cap, cancels, expiry."""
    reasons, ends, preemptions, caused, paid, guessed = set(), set(), 0, 0.0, 0.0, 0
    chunks: Counter[tuple[int, str]] = Counter()
    for seed in range(4):
        draw = random.Random(seed)
        sizes = tight_settings(draw, random_jobs(draw, range(1, VOCAB), 20, 60, ()), 4, 7)
        limits = {"queue_timeout": 0.4, "total_timeout": 0.8, "max_running_per_user": 1 + seed}
        engine = toy_engine(
            ToyModel(seed=seed, eos_bonus=-1.0, repeats=True),
            **(sizes | {"kv_blocks": max(16, sizes["kv_blocks"]), "policy": policy, "draft_tokens": drafts} | limits),
        )
        clock.watch(device(engine))
        found = load_of(engine, clock, seed, 126)
        assert len(found) == 126
        for record in engine.ledger.records:
            guessed += sum(row.accepted for row in record.rows)
            chunks.update((seed, row.request_id) for row in record.rows if row.kind == "prefill")
        for came, finish, told in found.values():
            check_receipt(came, finish, told)
            reasons |= set(finish.receipt["details"]["queue"])
            ends.add(finish.finish_reason)
            preemptions += finish.receipt["details"]["preemptions"]
            assert (finish.receipt["preempted"] > 0) == (finish.receipt["details"]["preemptions"] > 0)
            caused += finish.receipt["details"]["caused"]
            paid += finish.receipt["batchmates"]
    assert reasons >= {"behind", "user_cap", "no_kv" if policy == "continuous" else "policy"}
    assert ends >= {FinishReason.STOP, FinishReason.LENGTH, FinishReason.CANCELLED, FinishReason.EXPIRED}
    assert preemptions > 0
    assert max(chunks.values()) > 2, "no prompt was computed in chunks"
    assert (guessed > 0) == (drafts > 0)
    assert paid > 0
    assert caused == pytest.approx(paid, rel=0.05)


def test_a_late_device_has_the_same_receipts(clock: Clock) -> None:
    make = partial(toy_engine, ToyModel(eos_bonus=-2.0), kv_blocks=30, max_num_seqs=3, max_num_batched_tokens=12)
    told = []
    for device in (at_once, made_late):
        engine = device(make())
        clock.watch(engine)
        for number in range(8):
            engine.add_request(
                [5, 6, 7] * (1 + number), SamplingParams(max_tokens=6, temperature=0.0), request_id=f"r{number}"
            )
        receipts = {}
        while engine.has_work:
            receipts |= {finish.request_id: finish.receipt for finish in engine.step().finishes}
        told.append(receipts)
    for name, receipt in told[0].items():
        late = told[1][name]
        assert [late[part] for part in PARTS] == pytest.approx([receipt[part] for part in PARTS], rel=0.02, abs=0.5)
        assert late["details"]["first_iteration"] == receipt["details"]["first_iteration"]
        assert late["details"]["last_iteration"] == receipt["details"]["last_iteration"]


def test_a_pause_is_no_request_s_own_time(clock: Clock) -> None:
    engine = toy_engine(max_num_seqs=1)
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    for name in ("runs", "waits"):
        engine.add_request([5, 6], params, request_id=name)
    engine.step()
    engine.controls.pause()
    engine.step()
    clock.ms += 1000.0
    engine.controls.resume()
    receipts = {}
    while engine.has_work:
        receipts |= {finish.request_id: finish.receipt for finish in engine.step().finishes}
    assert receipts["runs"]["stalled"] == pytest.approx(1000.0, abs=1.0)
    assert receipts["waits"]["details"]["queue"]["paused"] == pytest.approx(1000.0, abs=1.0)
    assert receipts["waits"]["stalled"] == 0.0


def test_what_was_before_counts(clock: Clock) -> None:
    engine = toy_engine()
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    engine.add_request([5], params, request_id="a", age=2.0)
    engine.add_request(
        [5], params, request_id="b", output_ids=[8], age=2.0, past=Past(100.0, 200.0, 300.0, 900.0, 300.0)
    )
    receipts = {}
    while engine.has_work:
        receipts |= {finish.request_id: finish.receipt for finish in engine.step().finishes}
    assert receipts["a"]["details"]["queue"]["accept"] == 2000.0
    resumed = receipts["b"]
    assert resumed["details"]["queue"]["earlier"] == 100.0
    assert resumed["details"]["queue"]["accept"] == 500.0
    assert (resumed["stalled"], resumed["details"]["ttft"]) == (900.0, 300.0)
    assert resumed["decode"] > 300.0
    assert sum(resumed[part] for part in PARTS) == pytest.approx(resumed["total"], abs=0.01)
