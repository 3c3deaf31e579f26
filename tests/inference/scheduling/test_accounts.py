"""Every moment of a request's life belongs to one part of its receipt, in virtual time: any sequence of arrivals,
plans, ends, preemptions and pauses, against a plain record of what was in force when."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.iterations import complete

from inference.config import POLICIES, SamplingParams
from inference.scheduling.account import Account, Stage
from inference.scheduling.accounts import Accounts
from inference.scheduling.blocks import BlockPool
from inference.scheduling.cost_model import CostModel, Load
from inference.scheduling.kv_manager import KVManager
from inference.scheduling.policies import make_policy
from inference.scheduling.receipt import PARTS, Past
from inference.scheduling.request import Request, RequestRefused, RequestState
from inference.scheduling.scheduler import Scheduler
from inference.scheduling.waiting_queue import WaitingQueue


class World:
    """A scheduler and its accounts, and beside them, request by request, what was in force in each span of time."""

    def __init__(self, policy: str, cap: int | None, blocks: int, seats: int, seed: int) -> None:
        self.draw = random.Random(seed)
        self.now = 1000.0
        self.scheduler = Scheduler(
            KVManager(BlockPool(blocks, 2)), seats, seats + self.draw.choice([0, 6, 40]), 200,
            make_policy(policy, seats, 30.0), None, WaitingQueue(200.0, cap),
        )  # fmt: skip
        self.costs = self.scheduler.pace.costs
        self.accounts = Accounts(self.costs, self.scheduler.queue.shares)
        self.open: dict[str, Account] = {}
        self.over: list[tuple[Account, float]] = []
        self.arrived: dict[str, float] = {}
        self.plain: dict[str, Counter[str]] = defaultdict(Counter)  # ms of waiting by reason, counted one by one
        self.reason: dict[str, str] = {}  # in force for each that has not run
        self.n = 0

    def pass_time(self, ms: float) -> None:
        for name, reason in self.reason.items():
            self.plain[name][reason] += ms
        self.now += ms

    def arrive(self) -> None:
        name = f"r{len(self.arrived)}"
        params = SamplingParams(max_tokens=self.draw.randint(1, 8))
        prompt = [7] * self.draw.randint(1, 20)
        user = self.draw.choice(["a", "b", ""])
        request = Request(name, prompt, params, 0, user, arrived_ms=self.now)
        try:
            self.scheduler.add(request, self.now)
        except RequestRefused:
            return
        self.arrived[name] = self.now
        self.open[name] = self.accounts.arrive(self.accounts.open(request, self.now))
        self.reason[name] = "paused" if self.scheduler.gate.paused else "iteration"

    def end(self, name: str) -> None:
        account = self.open.pop(name)
        self.scheduler.remove(account.request)
        self.accounts.end(account, self.now)
        self.reason.pop(name, None)
        self.over.append((account, self.now))

    def iterate(self) -> None:
        scheduler = self.scheduler
        if self.draw.random() < 0.1:
            scheduler.gate.pause()
        elif self.draw.random() < 0.5:
            scheduler.gate.resume()
        plan = scheduler.schedule(self.now)
        self.n += 1
        self.accounts.planned(plan, plan.load(), self.n, self.now)
        listed = {one.request_id: one.reason for one in scheduler.waiting_reasons(plan)}
        self.reason = {
            name: listed[name] for name, one in self.open.items() if one.stage is Stage.WAITING and name in listed
        }
        assert all(name in listed for name, one in self.open.items() if one.stage is Stage.WAITING)
        spent = self.draw.choice([1.0, 5.0, 17.0])
        self.pass_time(spent)
        if plan.rows:
            self.costs.observe(plan.load(), spent)
        complete(scheduler, plan, self.token)
        for row in plan.rows:
            request = row.request
            account = self.open.get(request.request_id)
            if account is None or not row.samples:
                continue
            if account.stage is not Stage.DECODE:
                self.accounts.token(account, self.now)
            if request.state is RequestState.FINISHED:
                self.end(request.request_id)
        self.accounts.landed(self.now, scheduler.gate.opens_at(self.now) > self.now)

    def token(self, request: Request) -> int:
        return 9

    def run(self, steps: int) -> None:
        for _ in range(steps):
            for _ in range(self.draw.choice([0, 0, 1, 3])):
                self.arrive()
            self.pass_time(self.draw.choice([0.0, 0.5, 2.0]))
            if self.open and self.draw.random() < 0.1:
                self.end(self.draw.choice(sorted(self.open)))
            self.iterate()
            self.pass_time(self.draw.choice([0.0, 0.25]))
        self.scheduler.gate.resume()
        while self.open:
            self.scheduler.gate.resume()
            self.iterate()


@settings(max_examples=150, deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    cap=st.sampled_from([None, 1, 2]),
    blocks=st.integers(10, 24),
    seats=st.integers(1, 5),
    seed=st.integers(0, 1 << 30),
)
def test_parts_add_up_and_reasons_are_those_of_the_ledger(
    policy: str, cap: int | None, blocks: int, seats: int, seed: int
) -> None:
    world = World(policy, cap, blocks, seats, seed)
    world.run(40)
    caused = batchmates = 0.0
    for account, ended in world.over:
        name, receipt = account.request.request_id, account.receipt()
        assert receipt["total"] == pytest.approx(ended - world.arrived[name], abs=0.01)
        assert sum(receipt[part] for part in PARTS) == pytest.approx(receipt["total"], abs=0.01)
        assert min(receipt[part] for part in PARTS) >= 0.0
        expected = {reason: ms for reason, ms in world.plain[name].items() if ms > 0.0}
        assert receipt["details"]["queue"] == pytest.approx(expected, abs=0.01)
        bill = sum(one["ms"] for one in receipt["details"]["batchmates"])
        assert bill <= receipt["batchmates"] + 0.01
        assert name not in [one["request_id"] for one in receipt["details"]["batchmates"]]
        if len(account.bill) <= 5:
            assert bill == pytest.approx(receipt["batchmates"], abs=0.05)
        caused += receipt["details"]["caused"]
        batchmates += receipt["batchmates"]
    assert caused == pytest.approx(batchmates, abs=0.01 * len(world.over) + 0.001 * caused)


class Plan:
    """A few requests, put into iterations by hand."""

    def __init__(self) -> None:
        self.costs = CostModel()
        for tokens in (1, 64, 200, 5, 100) * 30:
            self.costs.observe(Load(tokens, 0, 1), 2.0 + tokens)
        self.scheduler = Scheduler(KVManager(BlockPool(100, 4), False), 8, 64, 400)
        self.accounts = Accounts(self.costs, self.scheduler.queue.shares)
        self.n = 0

    def arrive(self, name: str, prompt: int, now: float, answer: int = 50, **more: object) -> Account:
        request = Request(name, [5] * prompt, SamplingParams(max_tokens=answer), 0, arrived_ms=now)
        self.scheduler.add(request, now)
        return self.accounts.arrive(self.accounts.open(request, now, **more))  # type: ignore[arg-type]

    def iterate(self, now: float, ms: float, *first_tokens: Account) -> None:
        plan = self.scheduler.schedule(now)
        self.n += 1
        self.accounts.planned(plan, plan.load(), self.n, now)
        complete(self.scheduler, plan)
        for account in first_tokens:
            self.accounts.token(account, now + ms)
        self.accounts.landed(now + ms)


def test_who_reads_along_pays_for_a_prompt_beside_it_and_is_told_whose_it_was() -> None:
    world = Plan()
    reader = world.arrive("reader", 1, 0.0)
    world.iterate(10.0, 10.0, reader)
    prompt = world.arrive("prompt", 31, 20.0)
    world.iterate(20.0, 40.0, prompt)  # 2 fixed, 1 its own token, 31 the prompt's
    world.iterate(60.0, 10.0)
    for account in (reader, prompt):
        world.accounts.end(account, 70.0)
    told, caused = reader.receipt(), prompt.receipt()
    assert (told["queue"], told["prefill"]) == (10.0, 10.0)
    assert told["batchmates"] == pytest.approx(40 * 31 / 34, rel=0.05)
    assert told["decode"] == pytest.approx(50 - told["batchmates"])
    assert told["details"]["batchmates"] == [{"request_id": "prompt", "ms": told["batchmates"]}]
    assert (told["details"]["first_iteration"], told["details"]["last_iteration"]) == (1, 3)
    assert caused["details"]["caused"] == pytest.approx(told["batchmates"], abs=0.01)
    assert (caused["prefill"], caused["batchmates"], caused["decode"]) == (40.0, 0.0, 10.0)
    assert (told["details"]["ttft"], caused["details"]["ttft"]) == (20.0, 40.0)


def test_what_a_preemption_costs_is_waiting_and_computing_again() -> None:
    world = Plan()
    account = world.arrive("a", 40, 0.0)
    world.iterate(0.0, 10.0)  # 32 of the prompt
    world.iterate(10.0, 10.0, account)
    world.scheduler.displace(account.request)
    world.iterate(25.0, 5.0)  # tells of it; nobody runs
    world.iterate(30.0, 10.0)
    world.iterate(40.0, 10.0, account)
    world.iterate(50.0, 10.0)
    world.accounts.end(account, 60.0)
    receipt = account.receipt()
    assert {part: receipt[part] for part in PARTS if receipt[part]} == {
        "prefill": 20.0,
        "decode": 15.0,
        "preempted": 25.0,
    }
    assert receipt["details"]["preemptions"] == 1


def test_what_another_engine_did_is_kept_apart() -> None:
    world = Plan()
    account = world.arrive("a", 4, 500.0, age_ms=100.0, past=Past(10.0, 20.0, 30.0, 35.0, 30.0))
    world.iterate(500.0, 10.0, account)
    world.accounts.end(account, 510.0)
    receipt = account.receipt()
    assert {part: receipt[part] for part in PARTS if receipt[part]} == {
        "queue": 15.0, "prefill": 30.0, "decode": 30.0, "stalled": 35.0,
    }  # fmt: skip
    assert receipt["details"]["queue"] == {"accept": 5.0, "earlier": 10.0}
    assert (receipt["total"], receipt["details"]["ttft"]) == (110.0, 30.0)


def test_a_request_that_nobody_plans_for_has_waited() -> None:
    world = Plan()
    account = world.arrive("a", 4, 0.0, age_ms=3.0)
    world.accounts.end(account, 5.0)
    world.accounts.end(account, 9.0)
    world.scheduler.remove(account.request)
    receipt = account.receipt()
    assert receipt["details"]["queue"] == {"accept": 3.0, "iteration": 5.0}
    assert (receipt["total"], receipt["queue"], receipt["details"]["first_iteration"]) == (8.0, 8.0, 0)
    world.iterate(20.0, 1.0)


def test_only_so_many_spans_are_kept_and_the_dearest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.scheduling.account_prefills.MOST_KEPT", 8)
    world = Plan()
    reader = world.arrive("reader", 1, 0.0, answer=300)
    world.iterate(0.0, 1.0, reader)
    now = 1.0
    for i in range(60):
        prompt = world.arrive(f"p{i}", 30 if i == 3 else 2, now, answer=1)
        world.iterate(now, 10.0, prompt)
        world.iterate(now + 10.0, 10.0)
        world.accounts.end(prompt, now + 20.0)
        now += 20.0
    world.accounts.end(reader, now)
    receipt = reader.receipt()
    assert receipt["details"]["batchmates"][0]["request_id"] == "p3"
    assert receipt["total"] == pytest.approx(now)
