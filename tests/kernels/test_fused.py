"""Operations that do several things in one pass, of every backend, against the same things one after the other."""

import pytest
import torch

from kernels import ops, reference


@pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float16], ids=["float32", "bfloat16", "float16"])
def any_dtype(request):
    return request.param


def tolerance(dtype):
    """A last bit or two; Triton's interpreter cuts bfloat16 off."""
    return {"rtol": {torch.float32: 2e-6, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9}[dtype], "atol": 1e-6}


def skip_float16_on_cpp(backend, dtype):
    if dtype == torch.float16 and backend.__name__ == "kernels.cpu.native":
        pytest.skip("the C++ kernels take no float16")


def rotation_case(dtype, heads=6, kv_heads=2, dim=16, tokens=7, block_size=4, cache_dtype=None):
    """Slices of one fused projection, caches full of NaN, and a slot for each token."""
    fused = torch.randn(tokens, heads + 2 * kv_heads, dim).to(dtype)
    query, key, value = fused.split_with_sizes((heads, kv_heads, kv_heads), 1)
    angle = torch.randn(tokens, dim // 2)
    blocks = tokens + 2
    caches = (
        torch.full((blocks, kv_heads, dim, block_size), torch.nan, dtype=cache_dtype or dtype),
        torch.full((blocks, kv_heads, block_size, dim), torch.nan, dtype=cache_dtype or dtype),
    )
    slots = torch.randperm(blocks * block_size)[:tokens]
    return fused, (query, key, value, angle.cos(), angle.sin(), *caches, slots)


def both(args):
    """The arguments twice, since they are changed in place; the slices stay slices."""
    query, key, value, *rest = args
    fused = torch.cat([query, key, value], 1)
    parts = fused.split_with_sizes((query.shape[1], key.shape[1], value.shape[1]), 1)
    return *parts, *(x.clone() for x in rest)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "block_size"), [(6, 2, 16, 4), (4, 4, 64, 16), (8, 1, 80, 1), (9, 3, 24, 7)]
)
def test_rotary_write_kv(backend, any_dtype, heads, kv_heads, dim, block_size):
    skip_float16_on_cpp(backend, any_dtype)
    _, args = rotation_case(any_dtype, heads, kv_heads, dim, block_size=block_size)
    expected = both(args)
    backend.rotary_write_kv(*args)
    reference.rotary_write_kv(*expected)
    torch.testing.assert_close(args[0], expected[0], **tolerance(any_dtype))
    for mine, wanted in zip(args[5:7], expected[5:7], strict=True):
        torch.testing.assert_close(mine, wanted, equal_nan=True, **tolerance(any_dtype))
        assert mine.isfinite().sum() == 7 * kv_heads * dim
    assert torch.equal(args[2], expected[2])


def test_rotary_write_kv_is_rotary_then_write_kv(backend):
    """To the last bit, in float32."""
    _, args = rotation_case(torch.float32)
    query, key, value, cos, sin, *caches, slots = both(args)
    backend.rotary_write_kv(*args)
    backend.rotary(query, key, cos, sin)
    backend.write_kv(key, value, *caches, slots)
    assert torch.equal(args[0], query)
    for mine, wanted in zip(args[5:7], caches, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=0, atol=0, equal_nan=True)


def test_rotary_write_kv_into_a_narrower_cache(backend):
    _, args = rotation_case(torch.float32, cache_dtype=torch.bfloat16)
    expected = both(args)
    backend.rotary_write_kv(*args)
    reference.rotary_write_kv(*expected)
    for mine, wanted in zip(args[5:7], expected[5:7], strict=True):
        torch.testing.assert_close(mine, wanted, equal_nan=True, **tolerance(torch.bfloat16))


@pytest.mark.parametrize("name", ["portable", "triton"])
@pytest.mark.parametrize("fused", [True, False])
def test_a_negative_slot_is_nowhere(load_backend, name, fused):
    backend = load_backend(name)
    _, args = rotation_case(torch.float32)
    args[-1][[1, 4]] = -1
    expected = both(args)
    if fused:
        backend.rotary_write_kv(*args)
        reference.rotary_write_kv(*expected)
        torch.testing.assert_close(args[0], expected[0], **tolerance(torch.float32))
    else:
        backend.write_kv(*args[1:3], *args[5:])
        reference.write_kv(*expected[1:3], *expected[5:])
    for mine, wanted in zip(args[5:7], expected[5:7], strict=True):
        torch.testing.assert_close(mine, wanted, equal_nan=True, **tolerance(torch.float32))
        assert mine.isfinite().sum() == 5 * 2 * 16


def test_rotary_write_kv_refuses_what_does_not_fit():
    _, (query, key, *rest) = rotation_case(torch.float32)
    with pytest.raises(ValueError, match="5 query heads can't be shared out among 2 KV heads"):
        ops.rotary_write_kv(query[:, :5], key, *rest)
    with pytest.raises(ValueError, match="do not fit query"):
        ops.rotary_write_kv(query, key, rest[0], rest[1][:3], *rest[2:])
    with pytest.raises(ValueError, match="do not fit 6 slots"):
        ops.rotary_write_kv(query, key, *rest[:-1], rest[-1][:6])


@pytest.mark.parametrize("width", [576, 37, 5000])
@pytest.mark.parametrize("with_x", [True, False])
def test_add_norm(backend, any_dtype, width, with_x):
    skip_float16_on_cpp(backend, any_dtype)
    x = torch.randn(5, width).to(any_dtype) if with_x else None
    residual, weight = torch.randn(5, width), torch.randn(width)
    expected_sum = residual.clone()
    expected = reference.add_norm(x, expected_sum, weight, 1e-5, any_dtype)
    actual = backend.add_norm(x, residual, weight, 1e-5, any_dtype)
    assert torch.equal(residual, expected_sum)
    assert actual.dtype == any_dtype
    torch.testing.assert_close(actual, expected, **tolerance(any_dtype))


@pytest.mark.parametrize("width", [576, 37])
def test_add_norm_is_add_then_norm_to_the_last_bit(cpu_backend, dtype, width):
    """The numbers that models had before the two were one."""
    x, residual, weight = torch.randn(9, width).to(dtype), torch.randn(9, width), torch.randn(width)
    total = residual + x
    expected = cpu_backend.rms_norm(total, weight, 1e-5).to(dtype)
    actual = cpu_backend.add_norm(x, residual, weight, 1e-5, dtype)
    assert torch.equal(residual, total)
    assert torch.equal(actual, expected)


def test_add_norm_takes_strided_rows(backend):
    wide, weight = torch.randn(5, 200), torch.randn(64)
    residual, x = wide[:, 8:72], wide[:, 100:164]
    total = residual + x
    actual = backend.add_norm(x, residual, weight, 1e-5, torch.float32)
    torch.testing.assert_close(actual, reference.add_norm(None, total.clone(), weight, 1e-5, torch.float32))
    assert torch.equal(wide[:, 8:72], total)


def test_a_row_with_nan_leaves_the_others(backend):
    x, residual, weight = torch.randn(3, 64), torch.randn(3, 64), torch.randn(64)
    x[1, 3] = torch.nan
    actual = backend.add_norm(x, residual, weight, 1e-5, torch.float32)
    assert actual[1].isnan().all()
    assert actual[[0, 2]].isfinite().all()


def test_add_norm_refuses_what_does_not_fit():
    x, weight = torch.zeros(3, 8), torch.zeros(8)
    with pytest.raises(ValueError, match="residual stream must be float32"):
        ops.add_norm(x, x.bfloat16(), weight, 1e-5, torch.float32)
    with pytest.raises(ValueError, match="weight"):
        ops.add_norm(x, x.clone(), weight[:7], 1e-5, torch.float32)
    with pytest.raises(ValueError, match=r"norm in torch\.bfloat16"):
        ops.add_norm(x, x.clone(), weight, 1e-5, torch.bfloat16)


@pytest.mark.parametrize("width", [14336, 1025])
def test_silu_mul_of_wide_rows(backend, any_dtype, width):
    skip_float16_on_cpp(backend, any_dtype)
    gate_up = torch.randn(2, 2 * width).to(any_dtype) * 4
    gate_up[0, :3] = torch.tensor([200.0, -200.0, 0.0])
    expected = reference.silu_mul(gate_up)
    torch.testing.assert_close(backend.silu_mul(gate_up), expected, rtol=tolerance(any_dtype)["rtol"] * 2, atol=1e-6)


def test_triton_takes_float16(load_backend):
    backend = load_backend("triton")
    x, residual, weight = (torch.randn(*shape).half() for shape in ((4, 96), (4, 96), (96,)))
    for actual, wanted in zip(
        backend.rms_norm(x, weight, 1e-5, residual), reference.rms_norm(x, weight, 1e-5, residual), strict=True
    ):
        torch.testing.assert_close(actual, wanted, **tolerance(torch.float16))
    query, key = torch.randn(4, 3, 32).half(), torch.randn(4, 1, 32).half()
    expected = query.clone(), key.clone()
    angle = torch.randn(4, 16)
    backend.rotary(query, key, angle.cos(), angle.sin())
    reference.rotary(*expected, angle.cos(), angle.sin())
    torch.testing.assert_close((query, key), expected, **tolerance(torch.float16))


def test_float16_on_cpp_is_refused_in_words(native):
    with pytest.raises(ValueError, match=r"CPU kernels take float32 and bfloat16, not torch\.float16"):
        native.silu_mul(torch.zeros(2, 8).half())
