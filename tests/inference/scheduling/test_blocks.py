from collections.abc import Callable, Iterator

import pytest

from inference.scheduling.blocks import BlockPool, PoolError


def counts(pool: BlockPool) -> tuple[int, int, int]:
    pool.check()
    return pool.free_count, pool.cached_count, pool.held_count


def key(number: int) -> bytes:
    return number.to_bytes(2, "little")


def cached_pool(num_blocks: int, cached: int) -> BlockPool:
    """Blocks 0..cached - 1 are cached under keys of the same number, block 0 used last."""
    pool = BlockPool(num_blocks, 16)
    blocks = pool.allocate(cached)
    for block in blocks:
        pool.register(block, key(block))
    pool.free(blocks)
    return pool


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


def test_too_many_for_free_and_cached_ones_evicts_nothing() -> None:
    pool = cached_pool(4, 2)
    pool.allocate(1)
    assert pool.available_count == 3
    assert pool.allocate(4) is None
    assert counts(pool) == (1, 2, 1)
    assert pool.lookup([key(0), key(1)]) == [0, 1]
    assert pool.evicted == 0


def test_less_than_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 blocks can't be allocated"):
        BlockPool(3, 16).allocate(-1)


def test_a_shared_block_is_free_with_its_last_reference() -> None:
    pool = BlockPool(3, 16)
    blocks = pool.allocate(2)
    pool.share(blocks)
    assert [pool.references(block) for block in range(3)] == [2, 2, 0]
    pool.free(blocks)
    assert counts(pool) == (1, 0, 2)
    pool.free(blocks)
    assert counts(pool) == (3, 0, 0)


@pytest.mark.parametrize("wrong", [[0], [7], [-1], [1, 1], [1, 2], [1, 0]])
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
    assert pool.references(1) == 1


def test_freeing_a_cached_block_raises() -> None:
    pool = cached_pool(4, 1)
    with pytest.raises(PoolError, match="block 0 is not held"):
        pool.free([0])
    assert counts(pool) == (3, 1, 0)


def test_a_block_with_a_key_is_cached_after_its_last_reference() -> None:
    pool = BlockPool(4, 16)
    full, partial = pool.allocate(2)
    assert pool.register(full, b"key")
    pool.share([full])
    pool.free([full, partial])
    assert counts(pool) == (3, 0, 1)
    pool.free([full])
    assert counts(pool) == (3, 1, 0)
    assert pool.lookup([b"key"]) == [full]


def test_sharing_makes_a_cached_block_held() -> None:
    pool = cached_pool(3, 2)
    pool.share([0])
    assert (pool.references(0), pool.references(1)) == (1, 0)
    assert counts(pool) == (1, 1, 1)
    assert pool.available_count == 2
    assert 0 not in pool.allocate(2)
    assert pool.lookup([key(0), key(1)]) == [0]


@pytest.mark.parametrize("wrong", [[2], [0, 2], [3, 2], [0, 0], [0, -1]])
def test_sharing_a_free_block_raises_and_changes_nothing(wrong: list[int]) -> None:
    pool = cached_pool(4, 3)
    pool.share([2])
    pool.forget([2])
    pool.free([2])
    (held,) = pool.allocate(1)
    assert held == 2
    pool.allocate(1)
    pool.free([2])
    with pytest.raises(PoolError):
        pool.share(wrong)
    assert counts(pool) == (1, 2, 1)
    assert pool.references(3) == 1


def test_sharing_what_is_not_there_says_so() -> None:
    with pytest.raises(PoolError, match="block 2 is neither held nor cached"):
        BlockPool(4, 16).share([2])


def test_free_blocks_are_used_before_any_is_evicted() -> None:
    pool = cached_pool(4, 2)
    assert sorted(pool.allocate(2)) == [2, 3]
    assert (pool.cached_count, pool.evicted) == (2, 0)


def test_the_tail_of_a_prefix_is_evicted_before_its_head() -> None:
    pool = cached_pool(3, 3)
    for left in (2, 1, 0):
        assert pool.allocate(1) == [left]
        assert pool.lookup(map(key, range(3))) == list(range(left))
    assert pool.evicted == 3
    assert counts(pool) == (0, 0, 3)


def test_the_least_recently_used_is_evicted_first() -> None:
    pool = cached_pool(3, 3)
    pool.share([2])
    pool.free([2])
    pool.lookup([key(1)])  # no use
    assert [pool.allocate(1) for _ in range(3)] == [[1], [0], [2]]


def test_an_evicted_block_is_not_cached_again() -> None:
    pool = cached_pool(1, 1)
    pool.free(pool.allocate(1))
    assert counts(pool) == (1, 0, 0)
    assert pool.lookup([key(0)]) == []


def test_the_first_block_of_a_key_stays_the_one() -> None:
    pool = BlockPool(3, 16)
    first, second = pool.allocate(2)
    assert pool.register(first, b"key")
    assert pool.register(first, b"key")
    assert not pool.register(second, b"key")
    assert pool.lookup([b"key"]) == [first]
    pool.free([second])
    assert counts(pool) == (2, 0, 1)
    pool.free([first])
    assert counts(pool) == (2, 1, 0)


def test_only_held_blocks_are_registered() -> None:
    pool = cached_pool(3, 1)
    for block in (0, 1, 7, -1):
        with pytest.raises(PoolError, match=f"block {block} is not held"):
            pool.register(block, b"new")
    assert pool.lookup([b"new"]) == []
    assert counts(pool) == (2, 1, 0)


def test_a_block_has_one_key() -> None:
    pool = BlockPool(3, 16)
    (block,) = pool.allocate(1)
    pool.register(block, b"one")
    with pytest.raises(PoolError, match="another key"):
        pool.register(block, b"two")
    assert (pool.lookup([b"one"]), pool.lookup([b"two"])) == ([block], [])
    pool.check()


def test_lookup_stops_at_the_first_gap_and_asks_for_no_more_keys() -> None:
    pool = cached_pool(4, 4)
    pool.forget([2])
    asked = []

    def keys() -> Iterator[bytes]:
        for number in range(4):
            asked.append(number)
            yield key(number)

    assert pool.lookup(keys()) == [0, 1]
    assert asked == [0, 1, 2]
    assert pool.lookup([key(3)]) == [3]
    assert counts(pool) == (1, 3, 0)


def test_a_forgotten_block_is_free_when_nobody_holds_it() -> None:
    pool = cached_pool(4, 3)
    pool.share([1])
    for _ in range(2):  # forgetting twice is forgetting once
        pool.forget([0, 1, 3])
        assert counts(pool) == (2, 1, 1)
    assert [pool.lookup([key(number)]) for number in range(3)] == [[], [], [2]]
    pool.free([1])
    assert counts(pool) == (3, 1, 0)
    assert pool.evicted == 0


def test_a_forgotten_key_can_be_registered_anew() -> None:
    pool = BlockPool(2, 16)
    bad, good = pool.allocate(2)
    pool.register(bad, b"key")
    pool.forget([bad])
    assert pool.register(good, b"key")
    pool.free([bad, good])
    assert pool.lookup([b"key"]) == [good]
    assert counts(pool) == (1, 1, 0)


def test_a_cleared_cache_finds_nothing_and_keeps_what_is_held() -> None:
    pool = cached_pool(5, 3)
    pool.share([1])
    pool.clear_cache()
    assert counts(pool) == (4, 0, 1)
    assert [pool.lookup([key(number)]) for number in range(3)] == [[], [], []]
    pool.free([1])
    assert counts(pool) == (5, 0, 0)
    assert sorted(pool.allocate(5)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2)])
def test_blocks_for(tokens: int, blocks: int) -> None:
    assert BlockPool(4, 16).blocks_for(tokens) == blocks


@pytest.mark.parametrize("size", [(0, 16), (4, 0)])
def test_an_empty_pool_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="can't hold anything"):
        BlockPool(*size)


def test_blocks_that_were_never_used_cost_nothing() -> None:
    pool = BlockPool(10**15, 16)
    blocks = pool.allocate(3)
    pool.free(blocks[:2])
    assert counts(pool) == (10**15 - 1, 0, 1)


def two_blocks_of_one_key(pool: BlockPool) -> None:
    del pool._key_of[0]
    pool._key_of.update({2: key(0), 0: key(0)})


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda pool: pool._returned.append(1), "free twice"),
        (lambda pool: (pool._returned.append(1), pool._references.pop(2)), "free twice"),
        (lambda pool: (pool._returned.append(2), pool._references.pop(5)), "in two states"),
        (lambda pool: (pool._returned.append(3), pool._references.pop(2)), "in two states"),
        (lambda pool: (pool._references.update({3: 1}), pool._references.pop(2)), "in two states"),
        (lambda pool: (pool._returned.append(-1), pool._references.pop(2)), "never given out; 6 were"),
        (lambda pool: (pool._returned.append(6), pool._references.pop(2)), "never given out; 6 were"),
        (lambda pool: vars(pool).update(num_blocks=5), "never given out; 6 were"),
        (lambda pool: pool._references.update({2: 0}), "held block has no reference"),
        (lambda pool: pool._references.pop(2), "1 free . 2 cached . 2 held blocks are not 6"),
        (lambda pool: pool._returned.pop(), "0 free . 2 cached . 3 held blocks are not 6"),
        (lambda pool: (pool._cached.update({2: None}), pool._references.pop(2)), "cached block has no key"),
        (lambda pool: (pool._returned.append(0), pool._references.pop(0)), "a free one has"),
        (lambda pool: pool._block_of.pop(key(0)), "does not have it"),
        (lambda pool: pool._block_of.update({key(3): 4}), "does not have it"),
        (lambda pool: pool._block_of.update({b"new": 2}), "does not have it"),
        (lambda pool: pool._key_of.update({2: b"new"}), "does not have it"),
        (two_blocks_of_one_key, "two blocks have one key"),
    ],
)
def test_check_finds_broken_books(spoil: Callable[[BlockPool], object], found: str) -> None:
    pool = BlockPool(6, 16)
    pool.allocate(6)
    for block in (0, 3, 4):
        pool.register(block, key(block))
    pool.free([1, 3, 4])
    assert counts(pool) == (1, 2, 3)  # 1 is free, 3 and 4 are cached, 0, 2 and 5 are held, and 0 has a key
    spoil(pool)
    with pytest.raises(PoolError, match=found):
        pool.check()
