"""Policies, deadlines and priorities, seen from outside the engine."""

import time

import pytest
from support.toy import ToyModel, alone, toy_engine

from inference.config import POLICIES, ParameterError, SamplingParams
from inference.engine import Engine
from inference.scheduling.ledger import IterationRecord
from inference.scheduling.outputs import StepOutput
from inference.scheduling.request import FinishReason
from inference.scheduling.waiting_queue import WaitingQueue

LENGTHS = (1, 4, 20, 9, 2, 13)


def params(max_tokens: int, **more: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=1.2, seed=5, ignore_eos=True, **more)  # type: ignore[arg-type]


def jobs() -> list[tuple[list[int], SamplingParams]]:
    return [([5 + i] * (2 * i + 1), params(length)) for i, length in enumerate(LENGTHS)]


def run(engine: Engine) -> list[StepOutput]:
    steps = []
    while engine.has_work:
        time.sleep(engine.seconds_to_next_step())
        steps.append(engine.step())
    return steps


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_changes_an_answer(policy: str) -> None:
    engine = toy_engine(policy=policy, max_num_seqs=3, batch_delay=0.01)
    outputs = engine.generate([prompt for prompt, _ in jobs()], [p for _, p in jobs()])
    assert [o.token_ids for o in outputs] == [alone(prompt, p).token_ids for prompt, p in jobs()]
    assert {record.policy for record in engine.ledger.records} == {policy}


def waste(engine: Engine) -> tuple[int, int, int]:
    records = engine.ledger.records
    return len(records), sum(len(r.idle) for r in records), sum(r.padding for r in records)


def test_idle_seats_and_padding_are_in_the_ledger() -> None:
    engines = {policy: toy_engine(policy=policy, max_num_seqs=3, batch_delay=0.0) for policy in POLICIES}
    for engine in engines.values():
        engine.generate([prompt for prompt, _ in jobs()], [p for _, p in jobs()])
    assert waste(engines["continuous"])[1:] == (0, 0)
    # Batches of three: prompts of 1, 3, 5 and of 7, 9, 11; answers of 1, 4, 20 and of 9, 2, 13. An ended request's
    # seat is idle from the end of its last iteration to the one before the batch's last.
    iterations, idle, padding = waste(engines["static"])
    assert iterations == 20 + 13
    assert padding == (4 + 2) + (4 + 2)
    assert idle == (19 + 16) + (4 + 11)
    assert waste(engines["dynamic"])[0] >= 33
    assert waste(engines["continuous"])[0] < 33


def test_a_policy_is_switched_while_requests_run() -> None:
    engine = toy_engine(max_num_seqs=3)
    for i, (prompt, p) in enumerate(jobs()):
        engine.add_request(prompt, p, request_id=str(i))
    engine.step()
    engine.set_policy("static")
    records = [step.record for step in run(engine)]
    switched = next(i for i, record in enumerate(records) if record.policy == "static")
    members = [{row.request_id for row in record.rows} for record in records]
    assert not any(members[i] - members[i - 1] for i in range(1, switched)), "nobody joins while it drains"
    assert records[switched - 1].waiting[0].detail.startswith("switching to the static policy")
    assert {r for m in members[switched:] for r in m} == {"3", "4", "5"}
    with pytest.raises(ParameterError, match="policy is 'best'; it must be one of: continuous, dynamic, static"):
        engine.set_policy("best")


def test_a_filling_batch_is_told_of_once_and_says_how_long_to_wait() -> None:
    engine = toy_engine(policy="dynamic", batch_delay=30.0)
    engine.add_request([5, 6], params(3))
    first = engine.step()
    assert isinstance(first.record, IterationRecord)
    assert (first.record.rows, first.record.waiting[0].reason) == ((), "policy")
    assert engine.step().record is None
    assert 20 < engine.seconds_to_next_step() <= 30
    for _ in range(7):
        engine.add_request([5, 6], params(3))
    assert engine.seconds_to_next_step() == 0
    assert len(engine.step().record.rows) == 8


def ends(steps: list[StepOutput]) -> dict[str, FinishReason]:
    return {finish.request_id: finish.finish_reason for step in steps for finish in step.finishes}


def test_a_request_that_waited_too_long_expires() -> None:
    engine = toy_engine(max_num_seqs=1, queue_timeout=100.0)
    engine.add_request([5, 6], params(20), request_id="runs")
    engine.step()
    engine.add_request([5, 6], params(3), request_id="late", age=101.0)
    engine.add_request([5, 6], params(3), request_id="waits", age=50.0)
    steps = run(engine)
    assert ends(steps) == {
        "late": FinishReason.EXPIRED,
        "runs": FinishReason.LENGTH,
        "waits": FinishReason.LENGTH,
    }
    late = next(finish for step in steps for finish in step.finishes if finish.request_id == "late")
    assert late.error_message.startswith("the request waited for 100 s")
    assert (late.error_code, late.completion_tokens) == ("", 0)
    assert late.receipt["queue"] >= 101_000


@pytest.mark.parametrize("limit", ["run_timeout", "total_timeout"])
def test_a_request_that_runs_too_long_keeps_what_it_has(limit: str) -> None:
    engine = toy_engine(kv_blocks=2000, **{limit: 0.05})
    engine.add_request([5, 6], params(4000), request_id="long")
    steps = [engine.step() for _ in range(3)]
    time.sleep(0.06)
    steps += run(engine)
    finish = steps[-1].finishes[0]
    assert finish.finish_reason is FinishReason.EXPIRED
    assert finish.completion_tokens == 3
    assert engine.pool.held_count == 0


def test_an_urgent_request_passes_the_others() -> None:
    engine = toy_engine(max_num_seqs=1)
    for name, priority in (("a", 0), ("b", 0), ("low", -1), ("urgent", 1)):
        engine.add_request([5, 6], params(3, priority=priority), request_id=name)
    assert list(ends(run(engine))) == ["urgent", "a", "b", "low"]


def test_a_user_at_the_cap_waits_while_others_pass() -> None:
    engine = toy_engine(max_running_per_user=2)
    for name in ("a0", "a1", "a2", "b0"):
        engine.add_request([5, 6], params(3), request_id=name, user=name[0])
    record = engine.step().record
    assert [row.request_id for row in record.rows] == ["a0", "b0", "a1"]
    assert [(w.request_id, w.reason) for w in record.waiting] == [("a2", "user_cap")]
    assert record.waiting[0].detail == "its user has 2 running"
    run(engine)


def test_the_victim_is_the_lowest_in_standing_and_then_the_last_to_arrive() -> None:
    engine = toy_engine(ToyModel(), kv_blocks=9, max_num_seqs=3, prefix_caching=False)
    for name, priority in (("low", -1), ("a", 0), ("b", 0)):
        engine.add_request([5, 6, 7], params(12, priority=priority), request_id=name)
    preempted = [name for step in run(engine) for name in step.record.preempted]
    assert preempted[0] == "low"
    assert "a" not in preempted


@pytest.mark.parametrize("caching", [False, True])
def test_a_long_request_ends_however_many_outrank_it(caching: bool) -> None:
    """Room is short, its prompt is long, and there is always somebody with a higher priority."""
    engine = toy_engine(
        ToyModel(), kv_blocks=105, max_num_seqs=2, max_num_batched_tokens=8, prefill_chunk=8, prefix_caching=caching
    )
    engine.add_request([5 + i % 40 for i in range(400)], params(8, priority=-2), request_id="long")
    ended: set[str] = set()
    for iteration in range(3000):
        if len(engine.scheduler.waiting) < 3:
            engine.add_request([6, 7, 8 + iteration % 30], params(40, priority=2), request_id=f"high{iteration}")
        ended.update(finish.request_id for finish in engine.step().finishes)
        if "long" in ended:
            break
    assert "long" in ended
    assert len(ended) > 1


def test_a_record_tells_of_the_moment_when_it_was_planned() -> None:
    engine = toy_engine(policy="static", max_num_seqs=3, max_running_per_user=2)
    for i, length in enumerate((1, 2, 3)):
        engine.add_request([5, 6], params(length), request_id=str(i), user="ab"[i % 2])
    engine.add_request([5, 6], params(1), request_id="capped", user="a")
    for step in run(engine):
        record = step.record
        seats = [row.seat for row in record.rows]
        assert not set(seats) & set(record.idle), "a seat is taken or idle, not both"
        assert len(seats) + len(record.idle) <= record.seats
        for waiting in record.waiting:
            assert (waiting.reason, waiting.detail) != ("behind", "0 ahead")


def test_a_capped_request_says_so_in_the_iteration_that_ends_what_it_waits_for() -> None:
    engine = toy_engine(max_running_per_user=1)
    for name in ("a0", "a1"):
        engine.add_request([5, 6], params(2), request_id=name, user="a")
    waiting = [record.waiting[0] for record in (step.record for step in run(engine)) if record.waiting]
    assert [(w.request_id, w.reason, w.detail) for w in waiting] == [("a1", "user_cap", "its user has 1 running")] * 2


@pytest.mark.parametrize("age", [-1.0, float("nan"), "5"])
def test_an_age_that_is_none_is_refused(age: object) -> None:
    with pytest.raises(ParameterError, match="age"):
        toy_engine().add_request([5], params(2), age=age)  # type: ignore[arg-type]


def test_steps_cost_the_same_with_many_users_waiting() -> None:
    """Looks at users' places are counted over admissions, not timed."""

    def looks(users: int) -> int:
        engine = toy_engine(max_num_seqs=4)
        for i in range(users):
            engine.add_request([5, 6, 7], params(2), user=f"user {i}")
        engine.step()
        count = 0
        place = WaitingQueue._place

        def counted(self: WaitingQueue, group: object, user: str) -> tuple[float, int, str]:
            nonlocal count
            count += 1
            return place(self, group, user)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(WaitingQueue, "_place", counted)
            for _ in range(40):
                engine.step()
        return count

    few, many = looks(400), looks(4000)
    assert many <= 1.3 * few
