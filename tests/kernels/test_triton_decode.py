"""Triton's decode attention, split over the context and merged, against the reference."""

import pytest
import torch
from support import gpu

from kernels import reference

EDGES = [(1, 1), (1, 15), (1, 16), (1, 17), (1, 63), (1, 64), (1, 65), (1, 129), (1, 200)]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TOLERANCES = {torch.float32: (1e-5, 2e-6), torch.bfloat16: (1.6e-2, 1e-2), torch.float16: (2e-3, 1e-3)}


@pytest.fixture
def decode(load_backend):
    """paged_decode on the arguments of paged_attention, with a number of splits."""
    load_backend("triton")
    from kernels.triton import paged_decode

    module = gpu.OnDevice(paged_decode) if gpu.IS_COMPILED else paged_decode
    return lambda case, splits: module.paged_decode(*case.args[:7], splits)


def assert_near(actual, expected):
    rtol, atol = TOLERANCES[expected.dtype]
    assert torch.isfinite(expected).all()
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("splits", [1, 2, 4, 8, 16])
def test_any_number_of_splits_gives_the_same(decode, paged_case, splits):
    case = paged_case(EDGES, heads=6, kv_heads=2)
    assert_near(decode(case, splits), reference.paged_attention(*case.args))


@pytest.mark.parametrize("dtype_name", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(2, 2, 64), (3, 1, 80), (8, 2, 96), (8, 1, 128), (2, 1, 256), (20, 1, 16)]
)
def test_groups_and_head_dims(decode, paged_case, dtype_name, heads, kv_heads, head_dim):
    lengths = [(1, 70), (1, 5), (1, 131)]
    case = paged_case(lengths, heads=heads, kv_heads=kv_heads, head_dim=head_dim, dtype=DTYPES[dtype_name])
    assert_near(decode(case, 2), reference.paged_attention(*case.args))


@pytest.mark.parametrize("block_size", [1, 4, 7, 8, 32, 100])
def test_block_sizes(decode, paged_case, block_size):
    case = paged_case(EDGES, block_size=block_size, dtype=torch.bfloat16)
    assert_near(decode(case, 4), reference.paged_attention(*case.args))


@pytest.mark.parametrize("splits", [1, 4])
def test_rows_of_padding_are_zeros_and_change_nothing(decode, paged_case, splits):
    case = paged_case([(1, 40), (1, 0), (1, 130), (1, 0), (1, 0)])
    actual = decode(case, splits)
    assert_near(actual, reference.paged_attention(*case.args))
    assert not actual[torch.tensor([1, 3, 4])].any()
    assert actual[torch.tensor([0, 2])].any(dim=2).all()


def test_rows_of_padding_beside_a_prefill(load_backend, paged_case):
    case = paged_case([(5, 40), (1, 0), (1, 30), (3, 0)])
    assert_near(load_backend("triton").paged_attention(*case.args), reference.paged_attention(*case.args))


def test_a_sequence_without_a_token_is_passed_over(decode, paged_case):
    case = paged_case([(1, 90), (0, 20), (1, 9)])
    assert_near(decode(case, 4), reference.paged_attention(*case.args))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, in Triton's interpreter
@pytest.mark.parametrize("splits", [1, 4])
def test_a_broken_query_breaks_its_own_row_alone(decode, paged_case, splits):
    case = paged_case([(1, 150), (1, 150), (1, 20)])
    expected = reference.paged_attention(*case.args)
    case.query[1] = torch.nan
    actual = decode(case, splits)
    assert actual[1].isnan().all()
    assert_near(actual[[0, 2]], expected[[0, 2]])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_broken_key_is_not_lost_in_the_merge(decode, paged_case):
    case = paged_case([(1, 150), (1, 150)], kv_heads=1)
    case.key_cache[case.block_tables[0, 7]] = torch.nan
    actual = decode(case, 4)
    assert actual[0].isnan().all()
    assert actual[1].isfinite().all()


def test_the_bound_may_be_larger_than_any_context(load_backend, paged_case):
    """What is launched follows from the bound; what is computed from the contexts: a graph's replays."""
    backend = load_backend("triton")
    case = paged_case([(1, 40), (1, 130), (1, 1)], kv_heads=1)
    expected = reference.paged_attention(*case.args)
    for bound in (130, 300, 1000, 32_000):
        case.max_context_len = bound
        assert_near(backend.paged_attention(*case.args), expected)


def test_the_rule_fills_the_chip_and_no_more(load_backend):
    load_backend("triton")
    from kernels.triton.paged_decode import LEAST_SHARE, MOST_SPLITS, PROGRAMS, decode_splits

    assert decode_splits(1, 8, 8192, 132) == 32
    assert decode_splits(16, 8, 8192, 132) == 4
    assert decode_splits(128, 8, 8192, 132) == 1
    assert decode_splits(1, 8, 300, 132) == 1
    assert decode_splits(0, 8, 0, 132) == 1
    for sequences in (1, 3, 16, 70, 400):
        for context in (1, 256, 511, 4096, 131_072):
            splits = decode_splits(sequences, 4, context, 108)
            assert splits & (splits - 1) == 0
            assert 1 <= splits <= MOST_SPLITS
            assert splits == 1 or splits * sequences * 4 <= PROGRAMS * 108
            assert splits == 1 or context // splits >= LEAST_SHARE
