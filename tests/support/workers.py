"""Engine processes with the fake engine, for tests that kill, freeze and stop them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class WorkerProcess:
    def __init__(self, redis_url: str, name: str, step_seconds: float = 0.0, crash_on: str = "") -> None:
        self.name = name
        command = [sys.executable, __file__, redis_url, name, str(step_seconds), crash_on]
        env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
        self.process = subprocess.Popen(command, env=env)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = 10.0) -> int:
        return self.process.wait(timeout)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def main(redis_url: str, name: str, step_seconds: str, crash_on: str) -> int:
    from support.fake_engine import FakeEngine

    from inference.config import EngineConfig
    from inference.execution.models.errors import ModelError
    from inference.serving.worker import run_worker

    def make_engine(config: EngineConfig) -> FakeEngine:
        if name == "broken":
            raise ModelError("the model has no weights")
        return FakeEngine(config, float(step_seconds), crash_on)

    return run_worker(EngineConfig(), redis_url, name, make_engine)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
