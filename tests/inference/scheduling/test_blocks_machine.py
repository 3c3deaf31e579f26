"""The block pool against a model that is too simple to be wrong: holders, keys and one list in order of use."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inference.scheduling.blocks import BlockPool, PoolError

KEYS = [bytes([number]) for number in range(8)]
BLOCKS = 9


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS, 4)
        self.size = BLOCKS
        self.holders: list[list[int]] = []  # each with one reference to each of its blocks
        self.key_of: dict[int, bytes] = {}
        self.cached: list[int] = []  # least recently used first
        self.evicted = 0
        self.told = dict.fromkeys(range(BLOCKS), (0, False))  # references, findable: as changes tell

    @property
    def held(self) -> set[int]:
        return {block for blocks in self.holders for block in blocks}

    @property
    def free(self) -> set[int]:
        return set(range(self.size)) - self.held - set(self.cached)

    def a_holder(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, len(self.holders) - 1), label="holder")

    def some_of(self, data: st.DataObject, blocks: Any) -> list[int]:
        return data.draw(st.lists(st.sampled_from(sorted(blocks)), unique=True, max_size=5), label="blocks")

    @initialize(cached=st.integers(0, BLOCKS))
    def begin_with_a_full_cache(self, cached: int) -> None:
        if not cached:
            return
        self.allocate(cached)
        for block, key in zip(self.holders[0], KEYS, strict=False):
            self.pool.register(block, key)
            self.key_of[block] = key
        self.give_back(0)

    @rule(count=st.one_of(st.integers(0, 3), st.integers(0, BLOCKS + 1)))
    def allocate(self, count: int) -> None:
        held, free, cached = self.held, self.free, list(self.cached)
        blocks = self.pool.allocate(count)
        if count > len(free) + len(cached):
            assert blocks is None  # the invariants see that nothing has changed
            return
        assert len(blocks) == len(set(blocks)) == count
        assert not set(blocks) & held  # so whoever gets it is the only one to write in it
        lost = cached[: max(0, count - len(free))]
        assert set(blocks) & set(cached) == set(lost)
        assert free <= set(blocks) or not lost
        self.evicted += len(lost)
        self.unregister(lost)
        self.holders.append(blocks)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def register(self, data: st.DataObject, key: bytes) -> None:
        block = data.draw(st.sampled_from(sorted(self.held)), label="block")
        if self.key_of.get(block, key) != key:
            with pytest.raises(PoolError):
                self.pool.register(block, key)
            return
        taken = any(other != block and its == key for other, its in self.key_of.items())
        assert self.pool.register(block, key) is not taken
        if not taken:
            self.key_of[block] = key

    @rule(block=st.integers(-2, BLOCKS + 1), key=st.sampled_from(KEYS))
    def register_what_nobody_holds(self, block: int, key: bytes) -> None:
        if block not in self.held:
            with pytest.raises(PoolError):
                self.pool.register(block, key)

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=5))
    def lookup(self, keys: list[bytes]) -> None:
        block_of = {key: block for block, key in self.key_of.items()}
        run = []
        for key in keys:
            if key not in block_of:
                break
            run.append(block_of[key])
        assert self.pool.lookup(keys) == run

    @precondition(lambda self: self.held or self.cached)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        blocks = self.some_of(data, self.held | set(self.cached))
        self.pool.share(blocks)
        self.cached = [block for block in self.cached if block not in blocks]
        self.holders.append(blocks)

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def share_a_free_one_too(self, data: st.DataObject) -> None:
        wrong = [*self.some_of(data, range(self.size)), data.draw(st.sampled_from(sorted(self.free)))]
        with pytest.raises(PoolError):
            self.pool.share(wrong)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def free_a_holders_blocks(self, data: st.DataObject) -> None:
        self.give_back(self.a_holder(data))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def free_a_part(self, data: st.DataObject) -> None:
        index = self.a_holder(data)
        blocks = self.holders[index]
        place = data.draw(st.integers(0, len(blocks)), label="place")
        self.holders[index : index + 1] = [blocks[:place], blocks[place:]]
        self.give_back(index + 1)

    @precondition(lambda self: len(self.held) < self.size)
    @rule(data=st.data())
    def free_one_too_many(self, data: st.DataObject) -> None:
        wrong = data.draw(st.sampled_from(sorted(set(range(-1, self.size + 1)) - self.held)))
        with pytest.raises(PoolError):
            self.pool.free([*(sorted(self.held)), wrong])

    @precondition(lambda self: self.held)
    @rule()
    def free_twice_in_one_call(self) -> None:
        with pytest.raises(PoolError):
            self.pool.free([min(self.held), max(self.held), min(self.held)])

    @rule(blocks=st.lists(st.integers(0, BLOCKS - 1), max_size=3))
    def forget(self, blocks: list[int]) -> None:
        self.pool.forget(blocks)
        self.unregister(blocks)

    @rule(size=st.integers(1, BLOCKS), often=st.integers(0, 2))
    def resize(self, size: int, often: int) -> None:
        if often:
            return
        if any(block >= size for block in self.held):
            with pytest.raises(PoolError):
                self.pool.resize(size)
            return
        self.pool.resize(size)
        self.unregister([block for block in self.cached if block >= size])
        self.size = size

    @rule(often=st.integers(0, 9))
    def clear_cache(self, often: int) -> None:
        if not often:  # else there would never be much in it
            self.pool.clear_cache()
            self.unregister(list(self.key_of))

    def give_back(self, index: int) -> None:
        blocks = self.holders.pop(index)
        self.pool.free(blocks)
        gone = [block for block in reversed(blocks) if block not in self.held]
        self.cached += [block for block in gone if block in self.key_of]

    def unregister(self, blocks: list[int]) -> None:
        self.key_of = {block: key for block, key in self.key_of.items() if block not in blocks}
        self.cached = [block for block in self.cached if block not in blocks]

    @invariant()
    def books_are_right(self) -> None:
        pool = self.pool
        pool.check()
        assert (pool.free_count, pool.cached_count, pool.held_count) == (
            len(self.free),
            len(self.cached),
            len(self.held),
        )
        assert pool.available_count == len(self.free) + len(self.cached)
        assert pool.evicted == self.evicted
        for block in range(BLOCKS):
            assert pool.references(block) == sum(block in blocks for blocks in self.holders)
        block_of = {key: [block] for block, key in self.key_of.items()}
        assert all(pool.lookup([key]) == block_of.get(key, []) for key in KEYS)

    @invariant()
    def changes_are_told(self) -> None:
        """Whoever asks only for the blocks that are said to have changed knows all of them."""
        self.told |= {b: (self.pool.references(b), self.pool.is_findable(b)) for b in self.pool.take_changed()}
        self.told |= {b: (0, False) for b in range(self.size, BLOCKS)}  # a pool of another size is told anew
        assert self.told == {b: (self.pool.references(b), b in self.key_of) for b in range(BLOCKS)}
        assert self.pool.in_use() == self.held | set(self.cached)

    def teardown(self) -> None:
        """All freed and the cache cleared is all free; all freed and allocated again shows the order of eviction."""
        while self.holders:
            self.give_back(0)
        order, free = list(self.cached), len(self.free)
        if free % 2:
            self.pool.clear_cache()
            assert self.pool.free_count == self.size
        else:
            self.pool.allocate(free)
            assert [self.pool.allocate(1) for _ in order] == [[block] for block in order]
            assert self.pool.available_count == 0
        self.pool.check()


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
