"""That tests of kernels say the same when their tensors are moved: tried with a device that is the CPU."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from support.gpu import OnDevice


def test_what_an_operation_changes_comes_back_and_strides_are_kept() -> None:
    seen: list[torch.Tensor] = []

    def operation(
        x: torch.Tensor, pair: tuple[torch.Tensor, torch.Tensor], *, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        seen.extend((x, *pair))
        x.mul_(scale)
        pair[0].add_(1)
        return x.sum(), pair[1] + 1

    backend = OnDevice(SimpleNamespace(operation=operation, SIZE=3), "cpu")
    whole = torch.arange(12.0).view(3, 4)
    x, first, empty = whole[:, 1:3], torch.zeros(2), torch.zeros(0, 5)
    total, after = backend.operation(x, (first, empty), scale=2.0)
    assert backend.SIZE == 3
    assert [one.stride() for one in seen] == [one.stride() for one in (x, first, empty)]
    assert seen[0].data_ptr() != x.data_ptr()
    assert whole.tolist() == [[0, 2, 4, 3], [4, 10, 12, 7], [8, 18, 20, 11]]
    assert first.tolist() == [1, 1]
    assert (total.item(), tuple(after.shape)) == (66.0, (0, 5))
