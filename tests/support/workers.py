"""Engine processes for tests that kill, freeze and stop them: with the fake engine, or the real one and a toy model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class WorkerProcess:
    def __init__(
        self, redis_url: str, name: str, step_seconds: float = 0.0, crash_on: str = "", drain_timeout: float = 0.0
    ) -> None:
        self.name = name
        command = [sys.executable, __file__, redis_url, name, str(step_seconds), crash_on, str(drain_timeout)]
        env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
        self.process = subprocess.Popen(command, env=env)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = 10.0) -> int:
        return self.process.wait(timeout)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def slow_toy(step_seconds: float) -> Any:
    """A real engine of two seats whose passes take so long."""
    from support.toy import ToyModel, toy_engine

    class Slow(ToyModel):
        def forward(self, batch: Any, cache: Any) -> Any:
            time.sleep(step_seconds)
            return super().forward(batch, cache)

    return toy_engine(Slow(eos_bonus=-20.0), max_num_seqs=2, kv_blocks=128)


def main(redis_url: str, name: str, step_seconds: str, crash_on: str, drain_timeout: str = "0") -> int:
    from support.fake_engine import FakeEngine

    from inference.config import EngineConfig
    from inference.execution.models.errors import ModelError
    from inference.serving.worker import run_worker

    def make_engine(config: EngineConfig) -> Any:
        if name.startswith("toy"):
            return slow_toy(float(step_seconds))
        if name == "broken":
            raise ModelError("the model has no weights")
        return FakeEngine(config, float(step_seconds), crash_on)

    return run_worker(EngineConfig(), redis_url, name, make_engine, drain_timeout=float(drain_timeout))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
