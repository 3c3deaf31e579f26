"""Chunks that are cut to a stated gap between tokens. Prices are given, so nothing here depends on the clock."""

import pytest
from support.iterations import complete, iterate

from inference.config import SamplingParams
from inference.scheduling.blocks import BlockPool
from inference.scheduling.cost_model import CostModel, Load
from inference.scheduling.kv_manager import KVManager
from inference.scheduling.pace import LEAST_TOKENS, Pace, PrefillRoom
from inference.scheduling.request import Request
from inference.scheduling.scheduler import Scheduler


def costs(fixed: float = 4.0, token: float = 0.5, read: float = 0.0) -> CostModel:
    """Prices as if they had been learnt."""
    model = CostModel()
    model.prices = [fixed, 64 * token, 16384 * read, 0.0]
    return model


def scheduler(gap: float | None, model: CostModel, seats: int = 8) -> Scheduler:
    return Scheduler(KVManager(BlockPool(1000, 16)), seats, 2048, 16000, prefill_chunk=2048, pace=Pace(gap, model))


def request(name: str, prompt: int, answer: int = 500) -> Request:
    return Request(name, [7] * prompt, SamplingParams(max_tokens=answer), seed=0)


def chunks(one: Scheduler) -> dict[str, int]:
    return {row.request.request_id: row.num_tokens for row in iterate(one).rows}


def with_decodes(gap: float | None, model: CostModel, count: int = 4, **more: int) -> Scheduler:
    one = scheduler(gap, model, **more)
    for i in range(count):
        one.add(request(f"d{i}", 3))
    assert len(chunks(one)) == count
    return one


def test_a_chunk_fills_the_gap_that_decodes_leave() -> None:
    one = with_decodes(50.0, costs())
    one.add(request("long", 1000))
    # 50 ms less 4 for the weights and 4 decodes at 0.5: 44 ms of prompt, at 0.5 a token.
    assert chunks(one) == {"d0": 1, "d1": 1, "d2": 1, "d3": 1, "long": 88}


@pytest.mark.parametrize("read", [0.0, 0.0004])
def test_each_iteration_takes_as_long_as_was_promised_while_contexts_grow(read: float) -> None:
    model = costs(read=read)
    one = with_decodes(50.0, model)
    one.add(request("long", 1500))
    sizes = []
    for _ in range(10):
        plan = one.schedule()
        took, token = model.predict(plan.load()), model.per_token(one.running["long"].num_computed_tokens)
        assert 50.0 - 2 * token < took <= 50.0
        sizes.append(plan.rows[-1].num_tokens)
        complete(one, plan)
    if read:
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[-1] < sizes[0]


def test_without_a_gap_or_without_decodes_a_chunk_is_as_long_as_the_budget() -> None:
    one = with_decodes(None, costs())
    one.add(request("long", 1000))
    assert chunks(one)["long"] == 1000
    alone = scheduler(10.0, costs())
    alone.add(request("long", 1000))
    assert chunks(alone) == {"long": 1000}


def test_a_gap_that_decodes_alone_exceed_lets_prompts_go_on_slowly() -> None:
    one = with_decodes(3.0, costs())
    one.add(request("first", 40))
    one.add(request("second", 40))
    assert chunks(one)["first"] == LEAST_TOKENS
    for _ in range(6):
        chunks(one)
    assert one.running["second"].output_ids, "both came to their first tokens"


def test_a_short_prompt_passes_a_long_one() -> None:
    one = with_decodes(50.0, costs())
    one.add(request("long", 3000))
    one.add(request("short", 40))
    assert chunks(one) == {"d0": 1, "d1": 1, "d2": 1, "d3": 1, "long": 44, "short": 40}
    assert one.running["short"].output_ids


def test_a_prompt_that_nobody_can_pass_has_all_the_room() -> None:
    one = with_decodes(50.0, costs(), seats=5)
    one.add(request("long", 3000))
    one.add(request("short", 40))
    assert chunks(one) == {"d0": 1, "d1": 1, "d2": 1, "d3": 1, "long": 88}, "the short one has no seat"


def test_who_waits_for_the_pace_is_told_so_with_numbers() -> None:
    one = with_decodes(50.0, costs())
    for name in ("a", "b", "c", "d"):
        one.add(request(name, 3000))
    plan = one.schedule()
    assert [row.request.request_id for row in plan.rows][4:] == ["a", "b"]
    (first, *_) = one.waiting_reasons(plan)
    assert (first.request_id, first.reason) == ("c", "no_budget")
    assert first.detail == "92 tokens fit 50 ms between the tokens of 4 decoding"


def test_running_prompts_get_a_token_each_however_little_room_there_is() -> None:
    one = scheduler(5.0, costs())
    for i in range(6):
        one.add(request(f"p{i}", 700, answer=4))
    assert sum(chunks(one).values()) == 2048, "nobody decodes yet"
    sizes = chunks(one)
    assert sizes.pop("p0") == sizes.pop("p1") == 1, "these two decode"
    assert sizes.pop("p2") == LEAST_TOKENS
    assert set(sizes.values()) <= {1}


def test_room_before_any_price_is_known_is_without_end() -> None:
    room = PrefillRoom(CostModel(), 50.0, shared=False, why="")
    assert room.take(0, 4096) == 4096
    assert not room.is_spent


def test_a_pace_of_no_gap_makes_no_room() -> None:
    assert Pace(None).room(Load(4, 400, 4), 2) is None
    assert Pace(50.0).room(Load(), 2) is None
