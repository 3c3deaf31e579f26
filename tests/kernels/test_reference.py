"""The reference itself, against torch's own operators on data that is not paged."""

import pytest
import torch
from torch.nn import functional

from kernels import reference


@pytest.mark.parametrize(("query_len", "context_len"), [(9, 9), (4, 9), (1, 9), (1, 1), (16, 33)])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_attention_equals_sdpa_on_the_contiguous_sequence(paged_case, query_len, context_len, block_size):
    case = paged_case([(query_len, context_len)], block_size=block_size)
    visible = torch.ones(query_len, context_len, dtype=torch.bool).tril(context_len - query_len)
    expected = functional.scaled_dot_product_attention(
        case.query.transpose(0, 1)[None],
        case.keys[0].transpose(0, 1)[None],
        case.values[0].transpose(0, 1)[None],
        visible,
        enable_gqa=True,
    )[0].transpose(0, 1)
    torch.testing.assert_close(reference.paged_attention(*case.args), expected, rtol=1e-5, atol=1e-6)


def test_rms_norm_equals_torch():
    x, weight = torch.randn(5, 24), torch.randn(24)
    torch.testing.assert_close(reference.rms_norm(x, weight, 1e-5), functional.rms_norm(x, (24,), weight, 1e-5))


def test_rotary_is_a_rotation_by_relative_position():
    """Scores of rotated vectors depend on the distance of their positions alone."""
    angle = torch.arange(40.0)[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.001])
    cos, sin = angle.cos(), angle.sin()
    query = torch.randn(8).expand(40, 1, 8).clone()
    key = torch.randn(8).expand(40, 1, 8).clone()
    length = query.norm(dim=-1)
    reference.rotary(query, key, cos, sin)
    scores = query[:, 0] @ key[:, 0].T
    torch.testing.assert_close(query.norm(dim=-1), length)
    torch.testing.assert_close(scores[7, 3], scores[35, 31], rtol=1e-4, atol=1e-5)
    assert (scores[7, 3] - scores[7, 5]).abs() > 1e-3


def test_silu_mul_is_gate_first():
    gate, up = torch.randn(3, 8), torch.randn(3, 8)
    expected = gate / (1 + torch.exp(-gate)) * up
    torch.testing.assert_close(reference.silu_mul(torch.cat([gate, up], dim=1)), expected)
