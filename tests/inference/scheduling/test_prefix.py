import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.config import SamplingParams
from inference.scheduling import prefix
from inference.scheduling.blocks import BlockPool
from inference.scheduling.prefix import PrefixHasher
from inference.scheduling.request import Request

Tokens = Callable[[int, int], list[int]]


def tokens_of(ids: list[int]) -> Tokens:
    return lambda start, end: ids[start:end]


def all_keys(hasher: PrefixHasher, salt: str, ids: list[int]) -> list[bytes]:
    return list(hasher.chain(salt).keys(len(ids) // hasher.block_size, tokens_of(ids)))


def test_equal_prefixes_have_equal_keys_up_to_the_first_difference() -> None:
    hasher = PrefixHasher(2)
    one, other = all_keys(hasher, "ann", [1, 2, 3, 4, 5, 6, 7]), all_keys(hasher, "ann", [1, 2, 3, 4, 5, 9, 7, 8])
    assert len(one) == 3
    assert len(other) == 4
    assert one[:2] == other[:2]
    assert not set(one[2:]) & set(other[2:])


def test_a_difference_in_the_first_block_changes_all_keys() -> None:
    hasher = PrefixHasher(2)
    assert not set(all_keys(hasher, "", [1, 2, 3, 4, 5, 6])) & set(all_keys(hasher, "", [2, 1, 3, 4, 5, 6]))


def test_equal_ids_at_another_place_have_another_key() -> None:
    keys = all_keys(PrefixHasher(2), "", [1, 2] * 50)
    assert len(set(keys)) == 50


@pytest.mark.parametrize("pair", [("ann", "bob"), ("", "ann"), ("ann", "ann "), ("a", "a\0"), ("é", "e\u0301")])
def test_another_salt_has_no_key_in_common(pair: tuple[str, str]) -> None:
    hasher = PrefixHasher(2)
    ids = [1, 2, 3, 4]
    assert hasher.root(pair[0]) != hasher.root(pair[1])
    assert not set(all_keys(hasher, pair[0], ids)) & set(all_keys(hasher, pair[1], ids))


def test_a_salt_may_be_any_string() -> None:
    hasher = PrefixHasher(2)
    assert hasher.root("\ud800") != hasher.root("\ud801")


def test_another_engine_has_other_keys() -> None:
    one, other = PrefixHasher(2), PrefixHasher(2)
    parent = one.root("ann")
    assert one.root("ann") != other.root("ann")
    assert one.key(parent, [1, 2]) != other.key(parent, [1, 2])


def test_a_block_never_has_the_key_of_a_salt() -> None:
    hasher = PrefixHasher(1)
    salt = "abcd"
    assert hasher.key(b"", [int.from_bytes(salt.encode(), "little")]) != hasher.root(salt)


def test_keys_are_long_enough_to_be_unique() -> None:
    hasher = PrefixHasher(16)
    key = hasher.key(hasher.root(""), range(16))
    assert len(key) == len(hasher.root("")) == 32


FOUR_IDS = st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=4)


@given(one=FOUR_IDS, other=FOUR_IDS)
def test_ids_of_any_width_are_told_apart(one: list[int], other: list[int]) -> None:
    hasher = PrefixHasher(4)
    parent = hasher.root("")
    assert (hasher.key(parent, one) == hasher.key(parent, other)) == (one == other)


@pytest.mark.parametrize("pair", [([1, 256], [256, 1]), ([1, 0], [0, 1]), ([12, 3], [1, 23]), ([0, 0], [0, 1 << 31])])
def test_ids_are_not_run_together(pair: tuple[list[int], list[int]]) -> None:
    hasher = PrefixHasher(2)
    assert hasher.key(b"", pair[0]) != hasher.key(b"", pair[1])


@pytest.mark.parametrize("ids", [[], [1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3, -1], [1, 2, 3, 2**32], [1, 2, 3, 4.0]])
def test_only_a_full_block_of_ids_has_a_key(ids: list[int]) -> None:
    hasher = PrefixHasher(4)
    with pytest.raises(ValueError, match="needs 4 token ids of 32 bits"):
        hasher.key(hasher.root(""), ids)


def test_a_block_that_is_not_full_has_no_key_yet() -> None:
    ids = [1, 2, 3, 4, 5, 6, 7]
    chain = PrefixHasher(4).chain("")
    first = chain.key(0, tokens_of(ids))
    with pytest.raises(ValueError, match="needs 4 token ids"):
        chain.key(1, tokens_of(ids))
    ids.append(8)
    assert len(chain) == 1
    second = chain.key(1, tokens_of(ids))
    assert len(chain) == 2
    assert list(chain.keys(2, tokens_of(ids))) == [first, second]


@pytest.mark.parametrize("index", [-1, -2])
def test_there_is_no_block_before_the_first(index: int) -> None:
    chain = PrefixHasher(1).chain("")
    chain.key(1, tokens_of([1, 2]))
    with pytest.raises(ValueError, match=f"no block {index}"):
        chain.key(index, tokens_of([1, 2]))


def test_blocks_of_no_positions_are_refused() -> None:
    with pytest.raises(ValueError, match="blocks of 0 positions"):
        PrefixHasher(0)


def test_each_block_is_hashed_once_in_a_requests_life(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    hashed = []
    blake2b = prefix.blake2b
    monkeypatch.setattr(prefix, "blake2b", lambda data, **more: hashed.append(data) or blake2b(data, **more))

    def tokens(start: int, end: int) -> list[int]:
        asked.append((start, end))
        return list(range(start, end))

    chain = PrefixHasher(4).chain("ann")
    for length in range(1, 401):  # as in decode: after every token all its blocks are asked for
        list(chain.keys(length // 4, tokens))
    assert asked == [(start, start + 4) for start in range(0, 400, 4)]
    assert len(hashed) == 1 + 100


def test_no_more_keys_are_given_than_asked_for() -> None:
    """A prompt that was computed before leaves its last block to be computed again, though its key is there."""
    tokens, chain = tokens_of(list(range(8))), PrefixHasher(2).chain("")
    made = [chain.key(index, tokens) for index in range(4)]
    assert [list(chain.keys(count, tokens)) for count in range(5)] == [made[:count] for count in range(5)]


def test_no_key_is_made_after_the_one_where_a_lookup_stops() -> None:
    pool, chain = BlockPool(8, 2), PrefixHasher(2).chain("")
    ids = list(range(100))
    (block,) = pool.allocate(1)
    pool.register(block, chain.key(0, tokens_of(ids)))
    assert pool.lookup(chain.keys(50, tokens_of(ids))) == [block]
    assert len(chain) == 2


def test_keys_are_the_same_however_a_request_is_cut_in_prompt_and_answer() -> None:
    hasher = PrefixHasher(3)
    ids = list(range(10, 22))
    for cut in range(1, 13):
        request = Request("r", ids[:cut], SamplingParams(), seed=0, output_ids=ids[cut:])
        assert list(hasher.chain("").keys(4, request.tokens)) == all_keys(hasher, "", ids)


@pytest.mark.parametrize("block_size", [1, 2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_a_block_that_is_found_holds_what_the_request_would_compute(block_size: int, seed: int) -> None:
    """Many requests of two users over few ids in a small pool, as a scheduler would run them.

    `memory` stands for the device: block -> (user, all ids up to its end) as computed there.
    """
    rng = random.Random(1000 * block_size + seed)
    pool, hasher = BlockPool(24, block_size), PrefixHasher(block_size)
    memory: dict[int, tuple[str, list[int]]] = {}
    running: list[list[int]] = []
    found = {"ann": 0, "bob": 0}
    for _ in range(600):
        user, ids = rng.choice(["ann", "bob"]), rng.choices([7, 8], k=rng.randint(1, 6 * block_size))
        chain, full = hasher.chain(user), len(ids) // block_size
        table = pool.lookup(chain.keys((len(ids) - 1) // block_size, tokens_of(ids)))
        for index, block in enumerate(table):
            assert memory[block] == (user, ids[: (index + 1) * block_size])
        found[user] += len(table)
        pool.share(table)
        new = pool.allocate(pool.blocks_for(len(ids)) - len(table))
        while new is None:
            pool.free(running.pop(rng.randrange(len(running))))
            new = pool.allocate(pool.blocks_for(len(ids)) - len(table))
        assert not {block for held in (*running, table) for block in held} & set(new)
        for index, block in enumerate(new, len(table)):
            memory[block] = (user, ids[: (index + 1) * block_size])
            if index < full:
                pool.register(block, chain.key(index, tokens_of(ids)))
        running.append(table + new)
        while len(running) > 3:
            pool.free(running.pop(rng.randrange(len(running))))
        pool.check()
    assert min(found.values()) > 20
    assert pool.evicted > 100
    for table in running:
        pool.free(table)
    pool.clear_cache()
    pool.check()
    assert pool.free_count == 24
