"""What we ask of a CUDA device besides operators: pinned memory, events, graphs.

Knows: torch.cuda. Must not know: batches, models. Tests on machines without a GPU put a fake in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch


class Event(Protocol):
    """A mark in the device's queue of work. `synchronize` waits until the device has come to it."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end_event: Any, /) -> float: ...


class DeviceCalls(Protocol):
    """What the modules around it use of `Cuda`."""

    device: torch.device

    def pinned(self, nbytes: int) -> torch.Tensor: ...

    def event(self, timed: bool = False) -> Event: ...

    def capture(self, run: Callable[[], None]) -> Callable[[], None]: ...


class Cuda:
    """Of one device. Its graphs share one pool of memory, so only one of them may run at a time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Host memory, uint8 [nbytes], from which the device copies while the host goes on."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def event(self, timed: bool = False) -> Event:
        return torch.cuda.Event(enable_timing=timed)

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Run it once, then record it as a graph; what is given back runs it again in one launch.

        Whatever `run` reads and writes from outside of itself must stay where it is, and nothing that it allocates may
        be kept: then graphs can share their memory in any order. The run before compiles what is still to be compiled
        and makes cuBLAS allocate its workspace, neither of which a recording may do; it is on the recording's own
        stream, since a workspace belongs to one.
        """
        if self._stream is None:
            self._stream, self._pool = torch.cuda.Stream(self.device), torch.cuda.graph_pool_handle()
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                run()
        finally:  # where it raised, what it had launched still reads memory that others get now
            current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # thread_local: other threads of the process may go on calling CUDA meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            run()
        return graph.replay
