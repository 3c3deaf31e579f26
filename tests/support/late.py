"""An engine whose device is late: what is launched is computed when it is waited for, and not a moment earlier."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch

from inference.engine import Engine
from inference.execution.batch import Batch
from inference.execution.runner import ModelRunner
from inference.flight import Flight


class LateRunner(ModelRunner):
    """A GPU's order of things on a CPU: passes and zeroing in the order of their launch, results where they are waited
    for. launches: passes so far."""

    def __init__(self, runner: ModelRunner) -> None:
        super().__init__(runner.model, runner.cache)
        self.is_async = True
        self.launches = 0
        self._launched: tuple[Batch, torch.Tensor] | None = None

    def execute(self, batch: Batch) -> torch.Tensor:
        if self._launched is not None:
            raise AssertionError("a pass is launched before the one before it was waited for")
        self.launches += 1
        batch = replace(batch, **{field.name: getattr(batch, field.name).copy() for field in fields(batch)})
        logits = torch.full((len(batch.logits_rows), self.model.vocab_size), torch.nan)
        self._launched = batch, logits
        return logits

    def wait(self) -> None:
        if self._launched is not None:
            (batch, logits), self._launched = self._launched, None
            logits.copy_(super().execute(batch))

    def zero(self, blocks: Any) -> None:
        self.wait()
        super().zero(blocks)

    def forward_ms(self) -> float:
        if self._launched is not None:
            raise AssertionError("nothing has waited for the pass")
        return 2.0


def made_late(engine: Engine) -> Engine:
    """The engine, on such a device from now on."""
    runner = engine._passes.runner = LateRunner(engine._passes.runner)
    land = engine._land

    def wait_and_land(flight: Flight) -> None:
        runner.wait()  # as whatever reads the logits does
        land(flight)

    engine._land = wait_and_land  # type: ignore[method-assign]
    return engine
