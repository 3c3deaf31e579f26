"""KV write, rotary, RMS norm and SiLU-mul of every backend against the reference."""

import pytest
import torch

from kernels import reference


def assert_rounds_alike(actual, expected, ulps=2):
    """Equal but for the last bits: sums run in another order, and Triton's interpreter cuts bfloat16 off."""
    relative = 2e-6 if expected.dtype == torch.float32 else ulps * 2.0**-7
    torch.testing.assert_close(actual, expected, rtol=relative, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize(("kv_heads", "head_dim", "block_size"), [(3, 64, 16), (1, 16, 1), (2, 24, 4)])
def test_write_kv_touches_its_slots_alone(backend, dtype, kv_heads, head_dim, block_size):
    tokens, blocks = 11, 12
    key, value = torch.randn(2, tokens, kv_heads, head_dim).to(dtype)
    slots = torch.randperm(blocks * block_size)[:tokens]
    caches = [
        torch.full((blocks, kv_heads, head_dim, block_size), float("nan"), dtype=dtype),
        torch.full((blocks, kv_heads, block_size, head_dim), float("nan"), dtype=dtype),
    ]
    expected = [cache.clone() for cache in caches]
    backend.write_kv(key, value, *caches, slots)
    reference.write_kv(key, value, *expected, slots)
    for cache, wanted in zip(caches, expected, strict=True):
        torch.testing.assert_close(cache, wanted, rtol=0, atol=0, equal_nan=True)
        assert cache.isfinite().sum() == tokens * kv_heads * head_dim


def test_write_kv_into_a_narrower_cache(backend):
    key, value = torch.randn(2, 5, 2, 16).bfloat16().float()
    caches = torch.zeros(3, 2, 16, 4, dtype=torch.bfloat16), torch.zeros(3, 2, 4, 16, dtype=torch.bfloat16)
    expected = [cache.clone() for cache in caches]
    slots = torch.tensor([0, 5, 11, 2, 7])
    backend.write_kv(key, value, *caches, slots)
    reference.write_kv(key, value, *expected, slots)
    assert torch.equal(caches[0], expected[0])
    assert torch.equal(caches[1], expected[1])


def test_write_kv_rounds_to_nearest_even(native):
    exponent = torch.randint(-20, 20, (2, 1, 1, 4096))
    key, value = torch.randn(2, 1, 1, 4096) * 2.0**exponent
    key[0, 0, :5] = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, 3.4e38])
    key[0, 0, 5:9] = torch.tensor([0x3F808000, 0x3F818000, 0x7F800001, 0x3F80FFFF]).int().view(torch.float32)
    caches = torch.zeros(1, 1, 4096, 1, dtype=torch.bfloat16), torch.zeros(1, 1, 1, 4096, dtype=torch.bfloat16)
    native.write_kv(key, value, *caches, torch.tensor([0]))
    torch.testing.assert_close(caches[0].flatten(), key.flatten().bfloat16(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(caches[1].flatten(), value.flatten().bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("slot", [-1, 12])
def test_a_slot_outside_the_cache_is_refused(native, slot):
    key, value = torch.randn(2, 1, 2, 16)
    caches = torch.zeros(3, 2, 16, 4), torch.zeros(3, 2, 4, 16)
    with pytest.raises(ValueError, match="not in the cache, which has 3 blocks"):
        native.write_kv(key, value, *caches, torch.tensor([slot]))


@pytest.mark.parametrize("head_dim", [16, 64, 20])
def test_rotary_works_in_place_on_slices(backend, dtype, head_dim):
    fused = torch.randn(7, 6, head_dim).to(dtype)  # 3 query heads, 2 key heads, 1 value head
    expected = fused.clone()
    angle = torch.randn(7, head_dim // 2)
    cos, sin = angle.cos(), angle.sin()
    backend.rotary(fused[:, :3], fused[:, 3:5], cos, sin)
    reference.rotary(expected[:, :3], expected[:, 3:5], cos, sin)
    assert_rounds_alike(fused, expected)
    assert torch.equal(fused[:, 5], expected[:, 5])


@pytest.mark.parametrize("backend_name", ["cpp", "triton"])
def test_rotary_in_place_needs_contiguous_rows(load_backend, backend_name):
    backend = load_backend(backend_name)
    query, half = torch.zeros(3, 2, 16)[..., ::2], torch.zeros(3, 4)
    with pytest.raises(ValueError, match="contiguous rows"):
        backend.rotary(query, query, half, half)


@pytest.mark.parametrize("width", [576, 16, 37])
def test_rms_norm(backend, dtype, width):
    x, residual = torch.randn(2, 6, width).to(dtype)
    weight = torch.randn(width).to(dtype)
    assert_rounds_alike(backend.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5), ulps=3)
    before = x.clone(), residual.clone()
    y, total = backend.rms_norm(x, weight, 1e-5, residual)
    wanted, wanted_total = reference.rms_norm(x, weight, 1e-5, residual)
    assert_rounds_alike(y, wanted, ulps=3)
    assert_rounds_alike(total, wanted_total)
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


def test_rms_norm_of_a_row_with_nan_leaves_the_others(backend):
    x, weight = torch.randn(4, 64), torch.randn(64)
    expected = reference.rms_norm(x, weight, 1e-5)
    x[2, 5] = float("nan")
    actual = backend.rms_norm(x, weight, 1e-5)
    assert actual[2].isnan().all()
    others = torch.tensor([0, 1, 3])
    assert_rounds_alike(actual[others], expected[others])


@pytest.mark.parametrize("width", [1536, 16, 37])
def test_silu_mul(backend, dtype, width):
    gate_up = torch.randn(5, 2 * width).to(dtype) * 8
    gate_up[0, 0], gate_up[0, 1], gate_up[0, 2] = 200.0, -200.0, 0.0
    assert_rounds_alike(backend.silu_mul(gate_up), reference.silu_mul(gate_up), ulps=3)


def test_rows_may_be_strided(backend):
    wide = torch.randn(5, 200)
    weight = torch.randn(64)
    assert_rounds_alike(backend.rms_norm(wide[:, 8:72], weight, 1e-5), reference.rms_norm(wide[:, 8:72], weight, 1e-5))
    assert_rounds_alike(backend.silu_mul(wide[:, 8:72]), reference.silu_mul(wide[:, 8:72]))


def test_large_inputs_on_two_threads(native, dtype):
    torch.set_num_threads(2)
    x, weight = torch.randn(100, 576).to(dtype), torch.randn(576).to(dtype)
    assert_rounds_alike(native.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5), ulps=3)
    assert_rounds_alike(native.silu_mul(x), reference.silu_mul(x), ulps=3)
