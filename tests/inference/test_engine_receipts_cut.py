"""Receipts of requests that are cut off: cancelled in any phase, their engine killed, their log lost."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.carrying import random_jobs
from support.clock import BEGIN, Clock, at_once
from support.late import made_late
from support.toy import VOCAB, ToyModel, toy_engine

from inference.config import SamplingParams
from inference.engine import Engine
from inference.live import LiveRequest
from inference.scheduling.account import Stage
from inference.scheduling.outputs import RequestFinish
from inference.scheduling.receipt import PARTS
from inference.scheduling.request import FinishReason, RequestState
from inference.serving.entries import Entries
from inference.serving.logs import Log
from inference.serving.lost import Lost

GAP = 300.0  # ms from the end of an engine to the begin of the next one


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock.installed(monkeypatch)


def check_sum(finish: RequestFinish, came: float) -> dict[str, Any]:
    """The parts add up to what went by since the request came."""
    receipt = finish.receipt
    assert min(receipt[part] for part in PARTS) >= 0.0
    assert sum(receipt[part] for part in PARTS) == pytest.approx(receipt["total"], abs=0.01)
    assert receipt["total"] == pytest.approx((finish.finished_at - BEGIN) * 1000 - came, rel=0.01, abs=0.2)
    return receipt


def is_in(phase: str, live: LiveRequest) -> bool:
    stage, request = live.account.stage, live.request
    match phase:
        case "waiting":
            return stage is Stage.WAITING
        case "prefill":
            return stage is Stage.PREFILL and 0 < request.num_computed_tokens < len(request.prompt_ids)
        case "decode":
            return stage is Stage.DECODE and len(request.output_ids) > 2
        case "preempted":
            return stage is Stage.PREEMPTED and request.state is RequestState.WAITING
    return stage is Stage.PREEMPTED and request.state is RequestState.RUNNING


NOT_YET = {
    "waiting": {"prefill", "decode", "batchmates", "preempted"},
    "prefill": {"decode", "preempted"},
    "decode": set(),
    "preempted": set(),
    "computed again": set(),
}


@pytest.mark.parametrize("device", [at_once, made_late])
@pytest.mark.parametrize("phase", NOT_YET)
def test_a_cancel_in_any_phase(clock: Clock, phase: str, device: Callable[[Engine], Engine]) -> None:
    engine = device(
        toy_engine(
            ToyModel(eos_bonus=-20.0),
            kv_blocks=14,
            max_num_seqs=4,
            max_num_batched_tokens=10,
            prefill_chunk=4,
            prefix_caching=False,
        )
    )
    clock.watch(engine)
    came = {}
    for number in range(10):
        params = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
        name = engine.add_request([5 + number] * (6 + 2 * number), params, request_id=f"r{number}")
        came[name] = clock.ms
    cancelled: set[str] = set()
    while engine.has_work:
        finishes = engine.step().finishes
        if not cancelled:
            cancelled = {name for name, live in engine._live.items() if is_in(phase, live)}
            assert all(engine.cancel(name) for name in cancelled)
        for finish in finishes:
            receipt = check_sum(finish, came[finish.request_id])
            assert (finish.finish_reason is FinishReason.CANCELLED) == (finish.request_id in cancelled)
            if finish.request_id in cancelled:
                part = {"waiting": "queue", "computed again": "preempted"}.get(phase, phase)
                assert receipt[part] > 0.0
                assert all(receipt[part] == 0.0 for part in NOT_YET[phase])
                assert (receipt["details"]["ttft"] is None) == (finish.completion_tokens == 0)
    assert cancelled


@dataclass
class Tale:
    """What the broker has of a request, and what the web's row would have."""

    came: float
    entries: list[tuple[bytes, list[bytes]]] = field(default_factory=list)
    engines: int = 0
    lost: Lost | None = None
    began: float = 0.0  # Unix seconds, as the first delta told
    first: float = 0.0

    def claim(self, now: float) -> None:
        self.engines += 1
        self.entries.append((b"%d-0" % self.engines, [b"claim", b"t", b"engine", b"c", b"at", str(now).encode()]))

    def write(self, delta: Any) -> None:
        self.entries.append((b"%d-%d" % (self.engines, delta.seq), [b"delta", delta.encode()]))
        self.began = self.began or delta.started_at
        self.first = self.first or delta.created_at

    def forget(self, now: float) -> None:
        """The broker loses it, and it is put back."""
        self.entries.clear()
        self.engines = 0
        self.lost = Lost(now, self.began, self.first)


class Service:
    """Engines one after the other, and what is carried from one to the next."""

    def __init__(self, clock: Clock, seed: int) -> None:
        self.clock, self.seed = clock, seed
        self.tales: dict[str, Tale] = {}
        self.ends: dict[str, RequestFinish] = {}
        self.deaths: dict[str, int] = {}
        self.start()

    def start(self) -> None:
        model = ToyModel(seed=self.seed, eos_bonus=-1.0, repeats=True)
        self.engine = toy_engine(
            model, kv_blocks=24, max_num_seqs=5, max_num_batched_tokens=14, prefill_chunk=5, draft_tokens=3
        )
        self.clock.watch(self.engine)

    def add(self, name: str, job: Any) -> None:
        tale = self.tales.setdefault(name, Tale(self.clock.ms))
        now, came = self.clock.time(), BEGIN + tale.came / 1000
        log = Log.of(tale.entries)
        past = log.past(came, now, tale.lost)
        self.engine.add_request(
            job.prompt, job.params, request_id=name, output_ids=log.token_ids, age=now - came, past=past
        )
        tale.claim(now)

    def step(self) -> None:
        output, entries = self.engine.step(), Entries(self.engine.tokenizer, "w")
        for delta in output.deltas:
            self.tales[delta.request_id].write(entries.delta(delta, 1, self.clock.time()))
        self.ends |= {finish.request_id: finish for finish in output.finishes}

    def die(self, jobs: dict[str, Any], with_broker: bool) -> None:
        self.clock.ms += GAP
        self.start()
        for name, tale in self.tales.items():
            if name not in self.ends:
                self.deaths[name] = self.deaths.get(name, 0) + 1
                if with_broker:
                    tale.forget(self.clock.time())
                self.add(name, jobs[name])


@pytest.mark.parametrize("with_broker", [False, True])
def test_engines_that_die_under_load(clock: Clock, with_broker: bool) -> None:
    """Whoever was there was stalled; where the broker lost all, so was what had been done for nothing."""
    moved = 0
    for seed in range(4):
        draw = random.Random(seed)
        jobs = {f"r{n}": job for n, job in enumerate(random_jobs(draw, range(1, VOCAB), 60, 60, stop=("qj", "dd")))}
        service = Service(clock, seed)
        iteration = 0
        while service.engine.has_work or len(service.tales) < len(jobs):
            for name, job in jobs.items():
                if job.arrives == iteration:
                    service.add(name, job)
            if iteration in (12, 40, 70):
                service.die(jobs, with_broker)
            service.step()
            iteration += 1
        assert len(service.ends) == len(jobs)
        for name, finish in service.ends.items():
            receipt, tale = check_sum(finish, service.tales[name].came), service.tales[name]
            deaths = service.deaths.get(name, 0)
            moved += deaths > 0
            if not deaths:
                assert receipt["stalled"] == 0.0
                continue
            waited = receipt["details"]["queue"].get("earlier", 0.0)
            assert receipt["stalled"] + waited >= GAP * deaths - 1.0
            if tale.lost is None:
                assert receipt["stalled"] >= GAP - 1.0
            elif tale.lost.started_at:
                since = 1000 * (tale.lost.put_back_at - tale.lost.started_at)
                assert receipt["stalled"] >= since - 1.0
                assert receipt["details"]["ttft"] == pytest.approx(
                    1000 * (tale.lost.first_token_at - BEGIN) - tale.came, abs=0.2
                )
            else:
                assert receipt["stalled"] == 0.0
                assert receipt["details"]["queue"].get("accept", 0.0) <= 1.0
    assert moved > 30
