"""One user floods the engine: the others' answers come as if there were no flood, but for its fair share."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from support.toy import toy_engine

from inference.config import SamplingParams
from inference.engine import Engine

FLOOD, OTHERS = "flood", ("a", "b", "c", "d")


def jain(shares: list[int]) -> float:
    """Jain, Chiu and Hawe's index: 1 where all have the same, 1/n where one has everything."""
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


def flooded(**settings: object) -> tuple[Engine, dict[str, str]]:
    """500 requests of one user are there; then four others come with 60 each, of the same kind. Owners by request."""
    engine, draw = toy_engine(max_num_seqs=8, max_num_batched_tokens=64, kv_blocks=200, block_size=4, **settings), 7
    owners: dict[str, str] = {}
    lots = random.Random(draw)

    def add(user: str) -> None:
        prompt = [lots.randrange(1, 40) for _ in range(lots.randint(4, 30))]
        params = SamplingParams(max_tokens=lots.randint(4, 24), temperature=0.0, ignore_eos=True)
        owners[engine.add_request(prompt, params, user=user)] = user

    for _ in range(500):
        add(FLOOD)
    for _ in range(40):  # what the flood had before anybody came gives nobody a claim
        engine.step()
    for _ in range(60):
        for user in OTHERS:
            add(user)
    return engine, owners


def test_a_flood_of_500_takes_no_more_than_a_share() -> None:
    engine, owners = flooded()
    served, ended = Counter[str](), Counter[str]()
    left = Counter(owners[request.request_id] for request in engine.scheduler.queue.requests.values())
    while min(left[user] - ended[user] for user in OTHERS) > 10:  # everybody waits for more all the time
        step = engine.step()
        assert step.record is not None
        for row in step.record.rows:
            served[owners[row.request_id]] += row.tokens
        ended.update(owners[finish.request_id] for finish in step.finishes)
    assert set(served) == {FLOOD, *OTHERS}
    assert jain(list(served.values())) >= 0.95
    assert jain([ended[user] for user in (FLOOD, *OTHERS)]) >= 0.95


@pytest.mark.parametrize("cap", [None, 3])
def test_a_newcomer_does_not_wait_for_the_flood(cap: int | None) -> None:
    """The first token of one who comes into a flood: within the time of a few answers, not of hundreds."""
    engine, _ = flooded(max_running_per_user=cap)
    params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
    mine = engine.add_request([1, 2, 3], params, user="newcomer")
    steps = 1
    while not any(finish.request_id == mine for finish in engine.step().finishes):
        steps += 1
    assert steps < 60  # 700 others, of a dozen iterations each, eight at a time, are over a thousand
