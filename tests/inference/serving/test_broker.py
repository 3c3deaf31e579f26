"""The atomic steps, against a real server: each of them is a promise that two processes rely on."""

from dataclasses import replace

import pytest

from inference.serving.broker_engine import NoGroup
from inference.serving.broker_web import WebBroker
from inference.serving.logs import Outgoing
from inference.serving.messages import Control, Delta, EngineStatus, Finish, Submission


def submission(request_id="r1", **fields):
    return Submission(request_id, {"max_tokens": 8, "seed": 1}, prompt="a b c", **fields)


def delta(request_id, seq, text="x"):
    return Delta(request_id, seq, text, [seq], 1)


async def claimed(broker, request_id="r1", consumer="a", token="a#1"):
    await broker.create_group()
    await broker.submit(submission(request_id))
    [(entry_id, body)] = await broker.read_requests(consumer, 10)
    assert Submission.decode(body).request_id == request_id
    return entry_id, await broker.claim(request_id, token, consumer)


def alive(name):
    return EngineStatus(name, 1, "ready", False, 0.0)


async def test_submitting_twice_is_submitting_once(broker):
    assert await broker.submit(submission()) is True
    assert await broker.submit(submission()) is False
    await broker.create_group()
    assert len(await broker.read_requests("a", 10)) == 1


async def test_a_request_submitted_before_any_engine_is_delivered(broker):
    await broker.submit(submission())
    await broker.create_group()
    assert len(await broker.read_requests("a", 10)) == 1


async def test_claim_tells_the_log_so_far(broker):
    _, first = await claimed(broker)
    await broker.publish([Outgoing(first.claim, delta("r1", n)) for n in (1, 2, 3)])
    second = await broker.claim("r1", "b#1", "b")
    assert (first.claim.epoch, second.claim.epoch) == (1, 2)
    assert (first.attempts, second.attempts) == (1, 2)
    assert second.log.token_ids == [1, 2, 3]
    assert second.log.next_seq == 4


async def test_a_stale_claim_cannot_write(broker):
    _, first = await claimed(broker)
    await broker.publish([Outgoing(first.claim, delta("r1", 1))])
    second = await broker.claim("r1", "b#1", "b")
    refused = await broker.publish([Outgoing(first.claim, delta("r1", n, "stale")) for n in (2, 3)])
    assert refused == {"a#1"}
    assert await broker.publish([Outgoing(second.claim, delta("r1", 2, "good"))]) == set()
    assert await broker.publish([Outgoing(first.claim, Finish("r1", 3, "stop"))]) == {"a#1"}
    log = await broker.log("r1")
    assert [d.text for d in log.deltas] == ["x", "good"]
    assert log.finish is None
    _, events = await broker.read_feed("0-0")
    assert [e.text for e in events] == ["x", "good"]


async def test_a_claim_from_before_the_broker_lost_its_state_cannot_write(broker):
    """After a flush epochs start over, so a number alone would let it in."""
    _, first = await claimed(broker)
    await broker.publish([Outgoing(first.claim, delta("r1", 1))])
    await broker.redis.flushall()
    assert await broker.publish([Outgoing(first.claim, delta("r1", 2))]) == {"a#1"}
    assert not (await broker.log("r1")).exists
    _, second = await claimed(broker, consumer="b", token="b#1")
    assert second.claim.epoch == first.claim.epoch
    assert await broker.publish([Outgoing(first.claim, delta("r1", 2, "stale"))]) == {"a#1"}
    assert (await broker.log("r1")).deltas == []


async def counted(broker, engine="engine-1"):
    """Tokens of prompts and of answers."""
    names = ("prompt_tokens_total", "generation_tokens_total")
    return [float(n or 0) for n in await broker.redis.hmget(broker.key("totals", engine), names)]


async def test_tokens_count_as_they_are_written_each_once(broker):
    """Of two requests: one with words, one that ends before its first. Of a step that is sent again, and of what is
    written under a claim that holds no more, nothing counts."""
    _, first = await claimed(broker)
    _, other = await claimed(broker, "r2", token="a#2")
    wordless = {"r1": 7, "r2": 5}
    step = [Outgoing(first.claim, replace(delta("r1", 1), token_ids=[4, 5])), Outgoing(first.claim, delta("r1", 2))]
    for _ in range(2):
        await broker.publish(step, "engine-1", wordless)
        assert await counted(broker) == [7, 3]
    await broker.publish([Outgoing(other.claim, Finish("r2", 1, "error", prompt_tokens=5))], "engine-1", wordless)
    assert await counted(broker) == [12, 3]
    second = await broker.claim("r1", "b#1", "b")
    assert await broker.publish([Outgoing(first.claim, delta("r1", 3))], "engine-1") == {"a#1"}
    assert await counted(broker) == [12, 3]
    end = Finish("r1", 3, "stop", token_ids=[1, 2], prompt_tokens=7)
    await broker.publish([Outgoing(second.claim, end)], "engine-2", {})
    assert await counted(broker) == [12, 3]
    assert await counted(broker, "engine-2") == [0, 2]


async def test_publishing_the_same_step_again_changes_nothing(broker):
    """What a worker does when a connection breaks before the answer has come."""
    _, result = await claimed(broker)
    step = [Outgoing(result.claim, delta("r1", 1)), Outgoing(result.claim, Finish("r1", 2, "stop"))]
    assert await broker.publish(step) == set()
    before, feed = await broker.log("r1"), await broker.read_feed("0-0")
    assert await broker.publish(step) == set()
    assert await broker.log("r1") == before
    assert await broker.read_feed("0-0") == feed


async def test_a_finish_takes_the_request_out_of_the_queue(broker):
    _, result = await claimed(broker)
    await broker.publish([Outgoing(result.claim, Finish("r1", 1, "stop"))])
    assert await broker.read_requests("a", 10, new=False) == []
    assert await broker.redis.xlen(broker.key("requests")) == 0
    assert 0 < await broker.redis.ttl(broker.key("out", "r1")) <= 3600
    assert await broker.claim("r1", "b#1", "b") is None


async def test_release_lets_another_go_on_without_counting_as_an_attempt(broker):
    _, first = await claimed(broker)
    await broker.publish([Outgoing(first.claim, delta("r1", 1))])
    await broker.release(first.claim)
    assert await broker.publish([Outgoing(first.claim, delta("r1", 2))]) == set()  # refused in silence: it gave up
    second = await broker.claim("r1", "b#1", "b")
    assert second.attempts == 1
    assert second.log.next_seq == 2


async def test_take_over_only_from_the_dead(broker):
    await claimed(broker, consumer="a")
    await broker.beat("a", alive("a"))
    assert await broker.take_over("b", 10) == []
    await broker.stop_beating("a")
    [(_, body)] = await broker.take_over("b", 10)
    assert Submission.decode(body).request_id == "r1"
    assert await broker.take_over("c", 10) != []  # b never had a heartbeat
    await broker.beat("c", alive("c"))
    assert await broker.take_over("d", 10) == []


async def test_a_dead_consumer_with_nothing_is_forgotten(broker):
    await broker.create_group()
    await broker.read_requests("a", 1, wait_ms=1)
    await broker.take_over("b", 10)
    assert await broker.redis.xinfo_consumers(broker.key("requests"), "engines") == []


async def test_no_group_is_told_apart(broker):
    with pytest.raises(NoGroup):
        await broker.read_requests("a", 1)
    with pytest.raises(NoGroup):
        await broker.take_over("a", 1)


async def test_cancel_before_a_claim_ends_the_request_at_once(broker):
    await broker.submit(submission())
    assert await broker.cancel("r1") == "finished"
    assert await broker.cancel("r1") == "finished"
    assert (await broker.log("r1")).finish.finish_reason == "cancelled"
    await broker.create_group()
    assert await broker.read_requests("a", 10, wait_ms=1) == []
    _, [event] = await broker.read_feed("0-0")
    assert event.finish_reason == "cancelled"


async def test_controls_travel_beside_cancels_and_what_is_neither_is_passed_over(broker):
    await claimed(broker)
    await broker.control(Control("w", "slow", ms=5))
    await broker.cancel("r1")
    await broker.redis.xadd(broker.key("control"), {"neither": "x"})
    after, ids, controls = await broker.read_control("0-0")
    assert (ids, [Control.decode(control) for control in controls]) == (["r1"], [Control("w", "slow", ms=5)])
    assert await broker.read_control(after, wait_ms=1) == (after, [], [])


async def test_cancel_after_a_claim_stays_until_the_request_ends(broker):
    _, result = await claimed(broker)
    assert await broker.cancel("r1") == "asked"
    _, ids, _ = await broker.read_control("0-0")
    assert ids == ["r1"]
    assert await broker.cancelled_among(["r0", "r1"]) == ["r1"]
    again = await broker.claim("r1", "b#1", "b")
    assert (result.cancelled, again.cancelled) == (False, True)
    await broker.publish([Outgoing(again.claim, Finish("r1", 1, "cancelled"))])
    assert await broker.cancelled_among(["r1"]) == []


async def test_cancel_of_what_is_not_there(broker):
    assert await broker.cancel("nothing") == "missing"


async def test_log_ends(broker):
    await claimed(broker, "runs")
    await broker.submit(submission("waits"))
    assert await broker.log_ends(["waits", "runs", "unknown"]) == {"waits": "entry", "runs": "claim", "unknown": ""}


async def test_statuses_end_with_the_heartbeat(broker):
    await broker.beat("a", alive("a"), expiry=60)
    await broker.beat("b", alive("b"), expiry=0.001)
    while await broker.redis.exists(broker.key("engine", "b")):
        pass
    assert list(await broker.statuses()) == ["a"]


async def test_scripts_come_back_after_the_server_forgot_them(broker):
    await broker.submit(submission("r1"))
    await broker.redis.script_flush()
    assert await broker.submit(submission("r2"))


async def test_two_prefixes_do_not_meet(broker, valkey):
    other = WebBroker(valkey.url, prefix="other:")
    await broker.submit(submission())
    assert not (await other.log("r1")).exists
    await other.close()
