"""The head's best logits are float32's, and they are the best."""

from __future__ import annotations

import pytest
import torch

from inference.execution.models.head import BEST, Head


@pytest.fixture(params=["kept sums", "rounded"])
def _sums(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways, on a CPU that knows both."""
    if request.param == "rounded":
        monkeypatch.setattr("kernels.cpu.linear.multiplies_bfloat16", False)


pytestmark = pytest.mark.usefixtures("_sums")


@pytest.mark.parametrize("vocab", [5, 199, 1024, 4096])
def test_best_logits_are_exact_and_the_rest_is_near(vocab: int) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(vocab, 64).bfloat16(), torch.randn(9, 64).bfloat16()
    logits = Head(weight)(x)
    exact = x.double() @ weight.double().T
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, exact.float(), rtol=1e-2, atol=1e-2)
    best = exact.topk(min(BEST, vocab) // 2 + 1).indices
    torch.testing.assert_close(logits.gather(1, best), exact.gather(1, best).float(), rtol=1e-5, atol=1e-5)
    assert torch.equal(logits.argmax(1), exact.argmax(1))


def test_ties_by_rounding_are_told_apart() -> None:
    """Two tokens whose logits are 24.01 and 24.02: one bfloat16 number, but the second is better."""
    weight = torch.zeros(2048, 4)
    weight[700] = torch.tensor([24.0, 0.01, 0.0, 0.0])
    weight[1300] = torch.tensor([24.0, 0.02, 0.0, 0.0])
    logits = Head(weight.bfloat16())(torch.ones(2, 4).bfloat16())
    assert logits.argmax(1).tolist() == [1300, 1300]


def test_not_a_number_stays_one() -> None:
    x = torch.randn(3, 64).bfloat16()
    x[1, 5] = float("nan")
    logits = Head(torch.randn(2048, 64).bfloat16())(x)
    assert logits[1].isnan().any()
    assert logits[[0, 2]].isfinite().all()


def test_float32_is_the_plain_product() -> None:
    weight, x = torch.randn(2048, 64), torch.randn(3, 64)
    torch.testing.assert_close(Head(weight)(x), x @ weight.T)
