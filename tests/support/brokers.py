"""A private Valkey for tests: started on a unix socket in a short folder, killed with the test process."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from playground import private_broker
from playground.processes import TETHER


class PrivateBroker:
    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bs-"))
        self.url = private_broker.url_of(self.folder)
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-I", "-S", str(TETHER), str(os.getpid()), *private_broker.command(self.folder)]
        self.process = subprocess.Popen(command, start_new_session=True)
        private_broker.wait_until_up(self.folder)

    def kill(self) -> None:
        """SIGKILL: all it held is lost."""
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def private() -> Iterator[PrivateBroker]:
    broker = PrivateBroker()
    try:
        yield broker
    finally:
        broker.close()
