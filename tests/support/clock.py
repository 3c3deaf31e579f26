"""A clock for tests of where the time of requests goes: it goes on by what a forward pass computes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inference.engine import Engine

BEGIN = 1.7e9  # Unix seconds at ms 0


class Clock:
    """Goes on by what a pass computes, and by a little at each look, so that no moment is like another."""

    def __init__(self) -> None:
        self.ms = 5000.0

    @classmethod
    def installed(cls, monkeypatch: pytest.MonkeyPatch) -> Clock:
        """In place of the engine's own."""
        clock = cls()
        for module in ("inference.step", "inference.passes", "inference.generate", "inference.flight"):
            fake = SimpleNamespace(perf_counter=clock.perf_counter, time=clock.time, sleep=lambda seconds: None)
            monkeypatch.setattr(f"{module}.time", fake)
        return clock

    def perf_counter(self) -> float:
        self.ms += 0.003
        return self.ms / 1000

    def time(self) -> float:
        return BEGIN + self.ms / 1000

    def watch(self, engine: Engine) -> None:
        execute = engine._passes.runner.execute

        def timed(batch: Any) -> Any:
            self.ms += 2.0 + 0.1 * len(batch.token_ids)
            return execute(batch)

        engine._passes.runner.execute = timed  # type: ignore[method-assign]


def at_once(engine: Engine) -> Engine:
    """A device that is done when it comes back: as it is."""
    return engine
