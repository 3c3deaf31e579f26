"""Who holds a block, as requests come and go; the block map that records tell."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.ledgers import Run, state_of

from inference.config import SamplingParams
from inference.scheduling.block_map import BlockMap
from inference.scheduling.blocks import BlockPool
from inference.scheduling.holders import Holders
from inference.scheduling.kv_manager import KVManager
from inference.scheduling.request import Request


def test_the_next_holder_owns_what_the_first_one_leaves() -> None:
    holders = Holders()
    holders.took("a", [1, 2])
    holders.took("b", [2, 3])
    holders.took("c", [2])
    assert [holders.owner(block) for block in (0, 1, 2, 3)] == [None, "a", "a", "b"]
    holders.gave_back("a", [1, 2])
    assert [holders.owner(block) for block in (1, 2)] == [None, "b"]
    holders.gave_back("c", [2])
    assert holders.owner(2) == "b"
    holders.gave_back("b", [3, 2])
    assert len(holders) == 0


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3)), max_size=60))
def test_an_owner_is_always_one_who_holds(steps: list[tuple[str, int]]) -> None:
    """Each step takes what the request does not hold, or gives back what it does."""
    holders, held = Holders(), defaultdict(set)
    for name, block in steps:
        if name in held[block]:
            held[block].remove(name)
            holders.gave_back(name, [block])
        else:
            held[block].add(name)
            holders.took(name, [block])
        for number, names in held.items():
            assert holders.owner(number) in (names or {None})
    assert len(holders) == sum(bool(names) for names in held.values())
    assert holders._sharers.keys() == {block for block, names in held.items() if len(names) > 1}


def request(name: str, prompt: list[int]) -> Request:
    return Request(name, prompt, SamplingParams(max_tokens=4), 0, "u")


def kv_of(blocks: int) -> KVManager:
    return KVManager(BlockPool(blocks, 2), prefix_caching=True)


def compute(kv: KVManager, one: Request, count: int) -> None:
    start = one.num_computed_tokens
    assert kv.grow(one, count)
    one.num_computed_tokens += count
    kv.computed(one, start)


def test_changes_name_each_block_once_and_only_when_it_changed() -> None:
    kv, one = kv_of(8), request("one", [5, 6, 7, 8, 9])
    kv.welcome(one)
    assert kv.changes() == ()
    compute(kv, one, 3)
    assert kv.changes() == ((0, 1, 1, "one"), (1, 1, 0, "one"))
    assert kv.changes() == ()
    compute(kv, one, 1)
    assert kv.changes() == ((1, 1, 1, "one"),)
    other = request("two", [5, 6, 7, 8, 1])
    kv.welcome(other)
    kv.begin(other, kv.find(other))
    assert kv.changes() == ((0, 2, 1, "one"), (1, 2, 1, "one"))
    kv.release(one)
    assert kv.changes() == ((0, 1, 1, "two"), (1, 1, 1, "two"))
    kv.release(other)
    kv.pool.forget([1])
    assert kv.changes() == ((0, 0, 1, None), (1, 0, 0, None))


def test_a_pool_of_another_size_is_told_whole() -> None:
    kv, one = kv_of(8), request("one", [5, 6, 7, 8, 9])
    kv.welcome(one)
    compute(kv, one, 5)
    told = BlockMap()
    told.apply(kv.changes(), kv.pool.num_blocks)
    for size in (6, 20):
        kv.pool.resize(size)
        told.apply(kv.changes(), kv.pool.num_blocks)
        assert [tuple(block[:2]) for block in told.to_json()["blocks"]] == state_of(kv.pool)
        assert told.to_json()["owners"] == ["one"]


def test_a_map_in_parts_has_owners_of_its_own() -> None:
    run, told = Run(1, 40, seed=3), BlockMap()
    for one in run.records:
        told.apply(one.blocks, one.kv.total)
    assert told.to_json() == run.drawn(40)
    whole = [owner for _, _, owner in run.states[40]]
    parts = [told.to_json(start, start + 5) for start in (0, 5, 10)]
    assert [len(part["blocks"]) for part in parts] == [5, 5, 2]
    assert [None if place < 0 else part["owners"][place] for part in parts for _, _, place in part["blocks"]] == whole


def test_a_keyframe_is_the_map_again() -> None:
    run, told = Run(1, 40, seed=4), BlockMap()
    for one in run.records:
        told.apply(one.blocks, one.kv.total)
    again = BlockMap.of_keyframe(*told.keyframe())
    assert again == told
    again.apply([(0, 9, 1, "x")], again.total)
    assert again != told


def test_a_block_that_the_pool_does_not_have_is_no_change() -> None:
    with pytest.raises(ValueError, match="no block 5 in a pool of 5"):
        BlockMap(5).apply([(5, 1, 0, "a")], 5)
