"""Paged attention of every backend against the reference."""

import pytest
import torch

from kernels import reference

RAGGED = [(1, 1), (1, 17), (1, 64), (1, 70), (1, 15)]
CHUNKS = [(5, 5), (3, 20), (16, 16), (7, 71)]
MIXED = [(1, 33), (9, 9), (1, 1), (6, 50), (2, 65)]
SHAPES = [(9, 3, 64), (4, 4, 16), (8, 1, 128), (5, 5, 24)]


def assert_attention_agrees(backend, case):
    actual = backend.paged_attention(*case.args)
    expected = reference.paged_attention(*case.args)
    assert torch.isfinite(expected).all()
    wide = case.query.dtype == torch.float32
    torch.testing.assert_close(actual, expected, rtol=1e-5 if wide else 1.6e-2, atol=2e-6 if wide else 1e-2)


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("lengths", [RAGGED, CHUNKS, MIXED], ids=["decode", "prefill", "mixed"])
def test_ragged_lengths_and_block_sizes(backend, paged_case, dtype, lengths, block_size):
    assert_attention_agrees(backend, paged_case(lengths, block_size=block_size, dtype=dtype))


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
def test_head_groups_and_dims(backend, paged_case, dtype, heads, kv_heads, head_dim):
    case = paged_case(MIXED, heads=heads, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype)
    assert_attention_agrees(backend, case)


@pytest.mark.parametrize("block_size", [7, 32, 100, 256])
def test_unusual_block_sizes(cpu_backend, paged_case, dtype, block_size):
    assert_attention_agrees(cpu_backend, paged_case([*MIXED, (1, 300), (40, 290)], block_size=block_size, dtype=dtype))


def test_many_sequences_on_two_threads(native, paged_case, dtype):
    """Enough sequences that a task takes all KV heads, and enough work for a second thread."""
    torch.set_num_threads(2)
    case = paged_case([(1, 5 + 9 * i) for i in range(16)] + [(70, 140)], heads=9, kv_heads=3, head_dim=64, dtype=dtype)
    assert_attention_agrees(native, case)


def test_query_may_be_a_slice_of_a_fused_projection(backend, paged_case):
    case = paged_case(MIXED)
    tokens, heads, head_dim = case.query.shape
    fused = torch.randn(tokens, 2 * heads, head_dim)
    fused[:, :heads] = case.query
    case.query = fused[:, :heads]
    assert_attention_agrees(backend, case)


def test_a_sequence_without_tokens_is_passed_over(backend, paged_case):
    case = paged_case([(2, 5), (0, 5), (1, 9)])
    assert_attention_agrees(backend, case)


def test_scores_far_apart_do_not_overflow(backend, paged_case):
    case = paged_case([(1, 40), (8, 30)])
    case.query *= 1000
    assert_attention_agrees(backend, case)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy, in Triton's interpreter
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_broken_query_breaks_its_own_rows_alone(backend, paged_case, poison):
    case = paged_case(MIXED)
    expected = reference.paged_attention(*case.args)
    case.query[1] = poison  # the first token of the second sequence
    actual = backend.paged_attention(*case.args)
    assert actual[1].isnan().all()
    others = torch.arange(len(expected)) != 1
    torch.testing.assert_close(actual[others], expected[others], rtol=1e-5, atol=2e-6)


def test_offsets_beyond_32_bits(backend, paged_case, tmp_path):
    """32,768 blocks: the last ones lie past 2 ** 31 elements. Sparse files keep unused blocks out of memory."""
    shape = {"kv_heads": 3, "head_dim": 128, "block_size": 256}
    blocks, size = 32768, 3 * 128 * 256
    key_cache, value_cache = (
        torch.from_file(str(tmp_path / name), shared=True, size=blocks * size, dtype=torch.bfloat16)
        for name in ("keys", "values")
    )
    caches = key_cache.view(blocks, 3, 128, 256), value_cache.view(blocks, 3, 256, 128)
    case = paged_case(
        [(1, 300), (3, 20)], heads=3, dtype=torch.bfloat16, caches=caches, block_ids=[32767, 1, 30000], **shape
    )
    assert int(case.block_tables[0, 0]) * size > 1 << 31
    assert_attention_agrees(backend, case)


@pytest.mark.parametrize("block", [-1, 1 << 20])
def test_a_block_outside_the_cache_is_refused(cpu_backend, paged_case, block):
    case = paged_case(MIXED)
    case.block_tables[3, 1] = block
    with pytest.raises(ValueError, match=f"not in the cache, which has {len(case.value_cache)} blocks"):
        cpu_backend.paged_attention(*case.args)


@pytest.mark.parametrize(
    ("field", "index", "value"), [("query_starts", -1, 99), ("context_lens", 1, 8), ("context_lens", 0, 2000)]
)
def test_lengths_that_do_not_fit_are_refused(cpu_backend, paged_case, field, index, value):
    case = paged_case(MIXED)
    getattr(case, field)[index] = value
    with pytest.raises(ValueError, match="do not fit together"):
        cpu_backend.paged_attention(*case.args)


def test_without_numba_decode_gathers(monkeypatch, paged_case, dtype):
    from kernels.cpu import portable

    monkeypatch.setattr(portable, "numba_attention", None)
    assert_attention_agrees(portable, paged_case(MIXED, dtype=dtype))
