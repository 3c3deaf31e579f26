"""Child processes that are kept running: start, restart with back-off, give up, stop.

Knows: processes, signals and time. Must not know: what the children do. One asyncio loop, in the main thread (the
kernel ties a child to the thread that started it).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

log = logging.getLogger("batchscope.serve")

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds before a restart
CRASHES, WITHIN = 5, 60.0  # so many in so many seconds: give up
STEADY = 60.0  # seconds of life after which a crash counts as the first again
TETHER = Path(__file__).with_name("tether.py")


@dataclass(slots=True)
class Child:
    """One process and its replacements.

    on_exit: awaited with (pid, exit status) after each unexpected end, before the pause.
    """

    name: str
    command: Sequence[str]
    env: dict[str, str]
    pass_fds: Sequence[int] = ()
    on_exit: Callable[[int, int], Awaitable[None]] | None = None
    gave_up: asyncio.Event = field(default_factory=asyncio.Event)
    _process: asyncio.subprocess.Process | None = None
    _started_at: float = 0.0
    _stopping: bool = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._process.returncode is None else None

    async def start(self) -> None:
        """Start it once. Its own session: a Ctrl-C in the terminal reaches us alone, and we stop it in order."""
        self._started_at = time.monotonic()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(TETHER),
            str(os.getpid()),
            *self.command,
            env=self.env,
            pass_fds=self.pass_fds,
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )

    async def keep_running(self) -> None:
        """Restart it whenever it ends, until `stop`, or until it crashes too often."""
        crashes: deque[float] = deque(maxlen=CRASHES)
        pause = FIRST_PAUSE
        while True:
            process = self._process
            if process is None:
                await self.start()
                continue
            status = await process.wait()
            if self._stopping:
                return
            now = time.monotonic()
            if now - self._started_at > STEADY:
                pause = FIRST_PAUSE
            crashes.append(now)
            log.warning("%s_ended: %s; process %d", self.name, _in_words(status), process.pid)
            if self.on_exit is not None:
                await self.on_exit(process.pid, status)
            if len(crashes) == CRASHES and now - crashes[0] <= WITHIN:
                log.error("%s_gave_up: %d crashes in %.0f s", self.name, CRASHES, now - crashes[0])
                self.gave_up.set()
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            if self._stopping:
                return
            await self.start()

    def tell(self) -> None:
        """SIGTERM: it is to end, for good."""
        self._stopping = True
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)

    async def stop(self, timeout: float) -> None:
        """SIGTERM, and SIGKILL if that does not help in time."""
        self.tell()
        process = self._process
        if process is None or process.returncode is not None:
            return
        try:
            await asyncio.wait_for(process.wait(), timeout)
        except TimeoutError:
            log.warning("%s_killed: still there %.0f s after SIGTERM", self.name, timeout)
            self.kill()
            await process.wait()

    @property
    def is_stopping(self) -> bool:
        """Whether it is to end, for good."""
        return self._stopping

    @property
    def is_stopped(self) -> bool:
        """Whether the system holds it (SIGSTOP); False where that can't be told."""
        with contextlib.suppress(OSError, IndexError):
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
        return False

    def replace(self) -> None:
        """End it at once, as a crash does: another one is started."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def kill(self) -> None:
        """End it at once, and for good."""
        self._stopping = True
        self.replace()


def _in_words(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
