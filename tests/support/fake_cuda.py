"""A device for machines that have none. It works at once; what it is asked, and in what order, is noted."""

from __future__ import annotations

from collections.abc import Callable

import torch


class FakeCuda:
    """Stands in for `execution.cuda.Cuda` on CPU tensors. calls: what was asked, in order."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.calls: list[str] = []
        self.captures = 0
        self.marks = 0  # the last one that was recorded
        self.reached = 0  # the last one that was waited for
        self.elapsed = 2.5

    def pinned(self, nbytes: int) -> torch.Tensor:
        self.calls.append(f"pinned {nbytes}")
        return torch.full((nbytes,), 0xAB, dtype=torch.uint8)  # as rubbish as fresh memory

    def event(self, timed: bool = False) -> FakeEvent:
        return FakeEvent(self, timed)

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """As the real one: runs once before it records; a replay runs over the same tensors."""
        self.captures += 1
        run()
        return run


class FakeEvent:
    def __init__(self, device: FakeCuda, timed: bool) -> None:
        self._device, self._timed, self._mark = device, timed, 0

    def record(self) -> None:
        self._device.marks += 1
        self._mark = self._device.marks
        self._device.calls.append(f"record {self._mark}")

    def synchronize(self) -> None:
        self._device.reached = max(self._device.reached, self._mark)
        self._device.calls.append(f"wait {self._mark}")

    def elapsed_time(self, end_event: FakeEvent, /) -> float:
        if not (self._timed and end_event._timed):
            raise RuntimeError("an event that was made without timing has no time")
        if self._device.reached < end_event._mark:
            raise RuntimeError("the device has not come to that event yet")
        return self._device.elapsed
