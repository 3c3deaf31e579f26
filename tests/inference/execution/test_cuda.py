"""The order in which a graph is recorded, with every part of torch.cuda replaced; a GPU is needed for the rest."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from inference.execution.cuda import Cuda


class Stream:
    def __init__(self, name: str, events: list[str]) -> None:
        self.name, self._events = name, events

    def wait_stream(self, other: Stream) -> None:
        self._events.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    events: list[str] = []
    signature = inspect.signature(torch.cuda.graph.__init__)
    assert hasattr(torch.cuda.CUDAGraph, "replay")

    class Graph:
        def replay(self) -> None:
            events.append("replay")

    @contextmanager
    def on(stream: Stream) -> Any:
        events.append(f"on {stream.name}")
        yield
        events.append(f"off {stream.name}")

    @contextmanager
    def graph(*args: Any, **kwargs: Any) -> Any:
        signature.bind(None, *args, **kwargs)  # of the real one
        events.append(f"record on {kwargs['stream'].name} in {kwargs['pool']}")
        yield
        events.append("recorded")

    main = Stream("main", events)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("side", events))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    return events


def test_a_pass_runs_before_it_is_recorded_on_the_same_stream(events: list[str]) -> None:
    cuda = Cuda(torch.device("cuda"))
    replay = cuda.capture(lambda: events.append("run"))
    before = ["side waits for main", "on side", "run", "off side", "main waits for side"]
    assert events == [*before, "record on side in pool", "run", "recorded"]
    events.clear()
    replay()
    assert events == ["replay"]
    cuda.capture(lambda: events.append("another"))
    assert "record on side in pool" in events, "one pool for all"
