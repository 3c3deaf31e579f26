"""The door: who serves which device, what it refuses, and linear layers."""

import subprocess
import sys

import pytest
import torch

from kernels import ops, reference


@pytest.fixture
def fresh_choice():
    ops.backend.cache_clear()
    yield
    ops.backend.cache_clear()


@pytest.mark.usefixtures("fresh_choice")
class TestChoice:
    def test_reference_can_be_forced(self, monkeypatch):
        monkeypatch.setenv("BATCHSCOPE_KERNELS", "reference")
        assert ops.backend("cpu") is reference

    def test_unknown_choice_is_refused(self, monkeypatch):
        monkeypatch.setenv("BATCHSCOPE_KERNELS", "fast")
        with pytest.raises(ValueError, match="BATCHSCOPE_KERNELS is 'fast'"):
            ops.backend("cpu")

    def test_cpu_has_a_fast_path(self, monkeypatch):
        monkeypatch.setenv("BATCHSCOPE_KERNELS", "auto")
        from kernels.cpu import native, portable

        assert ops.backend("cpu") is (native if native.available else portable)

    def test_without_a_compiler_cpu_is_portable(self, monkeypatch):
        monkeypatch.setenv("BATCHSCOPE_KERNELS", "auto")
        from kernels.cpu import native, portable

        monkeypatch.setattr(native, "available", False)
        assert ops.backend("cpu") is portable

    def test_a_device_nobody_knows_gets_the_reference(self, monkeypatch):
        monkeypatch.setenv("BATCHSCOPE_KERNELS", "auto")
        assert ops.backend("xpu") is reference


def test_cpu_needs_no_triton():
    code = (
        "import sys, torch; from kernels import ops; ops.silu_mul(torch.ones(1, 2)); sys.exit('triton' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_step_of_attention_through_the_door(dtype):
    """Write through write_kv into a new cache, attend, and get what the reference gets."""
    caches = ops.new_kv_cache(4, 16, 2, 32, dtype, "cpu")
    assert [list(cache.shape) for cache in caches] == [[4, 2, 32, 16], [4, 2, 16, 32]]
    assert all(cache.dtype == dtype and not cache.any() for cache in caches)
    key, value = torch.randn(2, 20, 2, 32).to(dtype)
    ops.write_kv(key, value, *caches, torch.cat([torch.arange(48, 64), torch.arange(16, 20)]))
    query = torch.randn(20, 4, 32).to(dtype)
    numbers = torch.tensor([[3, 1]]).int(), torch.tensor([0, 20]).int(), torch.tensor([20]).int()
    actual = ops.paged_attention(query, *caches, *numbers, 0.2, 20, 20)
    expected = reference.paged_attention(query, *caches, *numbers, 0.2, 20, 20)
    tolerance = 2e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("change", [{"block_size": 0}, {"num_blocks": -1}, {"dtype": torch.int8}])
def test_a_cache_that_cannot_be_is_refused(change):
    sizes = {"num_blocks": 2, "block_size": 4, "kv_heads": 1, "head_dim": 8, "dtype": torch.float32, "device": "cpu"}
    with pytest.raises(ValueError, match="no KV cache of"):
        ops.new_kv_cache(**{**sizes, **change})


class TestShapesAreChecked:
    def test_attention(self, paged_case):
        case = paged_case([(1, 5), (2, 7)], block_size=4)
        good = list(case.args)
        wrong = {
            "does not fit a value cache": (0, case.query[..., :8]),
            "does not fit value cache": (1, case.value_cache),
            "do not agree on the number": (3, case.block_tables[:1]),
            "must be int32": (5, case.context_lens.long()),
        }
        for message, (place, value) in wrong.items():
            with pytest.raises(ValueError, match=message):
                ops.paged_attention(*good[:place], value, *good[place + 1 :])

    def test_write_kv(self, paged_case):
        case = paged_case([(1, 5)])
        key, slots = torch.zeros(3, 2, 16), torch.arange(3)
        caches = case.key_cache, case.value_cache
        with pytest.raises(ValueError, match=r"key \[3, 2, 16\] .* do not fit 2 slots"):
            ops.write_kv(key, key, *caches, slots[:2])
        with pytest.raises(ValueError, match="slots must be int64"):
            ops.write_kv(key, key, *caches, slots.int())

    def test_rotary(self):
        query, half = torch.zeros(3, 2, 8), torch.zeros(3, 4)
        with pytest.raises(ValueError, match="do not fit query"):
            ops.rotary(query, query, half, half[:2])
        with pytest.raises(ValueError, match="must be float32"):
            ops.rotary(query, query, half.double(), half)
        with pytest.raises(ValueError, match="do not go together"):
            ops.rotary(query, query.bfloat16(), half, half)

    def test_norm_and_silu(self):
        x = torch.zeros(3, 8)
        with pytest.raises(ValueError, match="weight"):
            ops.rms_norm(x, torch.zeros(7), 1e-5)
        with pytest.raises(ValueError, match="residual"):
            ops.rms_norm(x, torch.zeros(8), 1e-5, torch.zeros(2, 8))
        with pytest.raises(ValueError, match="gate_up"):
            ops.silu_mul(torch.zeros(3, 7))


@pytest.mark.parametrize("tokens", [1, 2, 5, 17])
def test_linear(dtype, tokens):
    weight, x = torch.randn(48, 32).to(dtype), torch.randn(tokens, 32).to(dtype)
    packed = ops.pack_linear(weight)
    expected = x.double() @ weight.double().T
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(ops.linear(x, packed).double(), expected, rtol=tolerance, atol=10 * tolerance)
    assert ops.linear(x, packed).dtype == dtype


def test_linear_of_a_wrong_width_is_refused():
    packed = ops.pack_linear(torch.randn(8, 16).bfloat16())
    with pytest.raises((ValueError, RuntimeError)):
        ops.linear(torch.randn(2, 15).bfloat16(), packed)
    with pytest.raises(ValueError, match=r"\[out, in\]"):
        ops.pack_linear(torch.randn(8))
