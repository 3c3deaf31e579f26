import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference.scheduling.blocks import BlockPool, PoolError


def counts(pool: BlockPool) -> tuple[int, int, int]:
    return pool.free_count, pool.cached_count, pool.held_count


def test_allocates_all_blocks_once() -> None:
    pool = BlockPool(5, 16)
    blocks = pool.allocate(2) + pool.allocate(3)
    assert sorted(blocks) == [0, 1, 2, 3, 4]
    assert counts(pool) == (0, 0, 5)


def test_too_many_changes_nothing() -> None:
    pool = BlockPool(3, 16)
    pool.allocate(2)
    assert pool.allocate(2) is None
    assert counts(pool) == (1, 0, 2)
    assert len(pool.allocate(1)) == 1


def test_a_shared_block_is_free_with_its_last_reference() -> None:
    pool = BlockPool(3, 16)
    blocks = pool.allocate(2)
    pool.share(blocks)
    pool.free(blocks)
    assert counts(pool) == (1, 0, 2)
    pool.free(blocks)
    assert counts(pool) == (3, 0, 0)


@pytest.mark.parametrize("wrong", [[0], [7], [-1], [1, 1], [1, 2]])
def test_freeing_what_is_not_held_raises_and_changes_nothing(wrong: list[int]) -> None:
    pool = BlockPool(4, 16)
    pool.free(pool.allocate(1))
    (held,) = pool.allocate(1)
    assert held == 0
    pool.allocate(1)
    pool.free([0])
    with pytest.raises(PoolError):
        pool.free(wrong)
    assert counts(pool) == (3, 0, 1)
    pool.check()


def test_sharing_what_is_not_held_raises() -> None:
    with pytest.raises(PoolError, match="block 2 is not held"):
        BlockPool(4, 16).share([2])


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2)])
def test_blocks_for(tokens: int, blocks: int) -> None:
    assert BlockPool(4, 16).blocks_for(tokens) == blocks


@pytest.mark.parametrize("size", [(0, 16), (4, 0)])
def test_an_empty_pool_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="can't hold anything"):
        BlockPool(*size)


def test_check_finds_broken_books() -> None:
    pool = BlockPool(4, 16)
    pool.allocate(3)
    pool.free([1])
    for spoil, mend in (
        (lambda: pool._returned.append(1), lambda: pool._returned.pop()),
        (lambda: pool._returned.append(0), lambda: pool._returned.pop()),
        (lambda: pool._returned.append(3), lambda: pool._returned.pop()),
        (lambda: pool._references.update({2: 0}), lambda: pool._references.update({2: 1})),
        (lambda: pool._references.pop(2), lambda: pool._references.update({2: 1})),
    ):
        spoil()
        with pytest.raises(PoolError):
            pool.check()
        mend()
        pool.check()


class PoolMachine(RuleBasedStateMachine):
    """The pool against a model of it: a list of holders, each with the blocks of one reference."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12, 4)
        self.holders: list[list[int]] = []

    @rule(count=st.integers(0, 13))
    def allocate(self, count: int) -> None:
        held = {block for blocks in self.holders for block in blocks}
        blocks = self.pool.allocate(count)
        assert (blocks is None) == (count > 12 - len(held))
        if blocks is not None:
            assert len(set(blocks)) == count
            assert not set(blocks) & held
            self.holders.append(blocks)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        blocks = data.draw(st.sampled_from(self.holders))
        part = blocks[: data.draw(st.integers(0, len(blocks)))]
        self.pool.share(part)
        self.holders.append(list(part))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        self.pool.free(self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1))))

    @rule(block=st.integers(-2, 13))
    def free_what_nobody_holds(self, block: int) -> None:
        if not any(block in blocks for blocks in self.holders):
            with pytest.raises(PoolError):
                self.pool.free([block])

    @invariant()
    def books_are_right(self) -> None:
        self.pool.check()
        held = {block for blocks in self.holders for block in blocks}
        assert counts(self.pool) == (12 - len(held), 0, len(held))


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
