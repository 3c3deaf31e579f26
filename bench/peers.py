"""Other engines' measurements, as processes of their own: one JSON line out, peak memory watched from outside.

Knows: processes. Must not know: what is measured. Ours is run the same way, so that the figures compare.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

PAGE = os.sysconf("SC_PAGE_SIZE")
WATCH_EVERY = 0.2  # seconds


class PeerError(RuntimeError):
    """A peer's command did not do what it should; one sentence, with its own last words."""


def peer(command: str | list[str]) -> dict[str, Any]:
    """The last JSON line that a command prints, with `peak_mb` and `started_at` (Unix seconds) added.

    peak_mb: the most memory, in MB, that its processes held together (resident; what they share counts for each).
    Raises PeerError.
    """
    words = shlex.split(command) if isinstance(command, str) else command
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        started_at = time.time()
        try:
            process = subprocess.Popen(words, stdout=output, stderr=errors, start_new_session=True)
        except OSError as error:
            raise PeerError(f"{words[0]} can't be run: {error.strerror}") from None
        watch = MemoryWatch(process.pid)
        try:
            status = process.wait()
        finally:
            if process.poll() is None:  # we are being ended, and so is all that it has started
                os.killpg(process.pid, signal.SIGKILL)
            peak = watch.stop()
        lines = [line for line in _text(output).splitlines() if line.startswith("{")]
        if status or not lines:
            last = (_text(errors).strip().splitlines() or ["it said nothing"])[-1]
            raise PeerError(f"{shlex.join(words)} ended with status {status} and {len(lines)} JSON lines: {last}")
    return {**json.loads(lines[-1]), "peak_mb": round(peak / 1e6), "started_at": started_at}


def in_turn(ours: list[str], peers: list[str], say: Any = print) -> list[dict[str, Any]]:
    """Ours, a peer, ours, the next peer, ... and ours last: each peer stands between two of ours."""
    say("ours")
    results = [peer(ours)]
    for command in peers:
        say(command)
        results.append(peer(command))
        say("ours again")
        results.append(peer(ours))
    return results


def ratios(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each peer of `in_turn`: the mean of ours before and after, over theirs."""
    found = []
    for i in range(1, len(results) - 1, 2):
        before, theirs, after = results[i - 1 : i + 2]
        found.append(
            {"system": theirs["system"]}
            | {key: (before[key] + after[key]) / 2 / theirs[key] for key in ("w1", "single") if key in theirs}
        )
    return found


class MemoryWatch:
    """Looks at a process and all under it a few times a second, from a thread of its own."""

    def __init__(self, pid: int) -> None:
        self._pid, self._peak = pid, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """The most bytes seen; 0 where there is no /proc."""
        self._ended.set()
        self._thread.join()
        return self._peak

    def _watch(self) -> None:
        while not self._ended.is_set():
            self._peak = max(self._peak, resident_bytes(self._pid))
            self._ended.wait(WATCH_EVERY)


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and its descendants; those that end meanwhile count as nothing."""
    total = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        total = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            total += sum(resident_bytes(int(child)) for child in children.read_text().split())
    return total


def _text(file: Any) -> str:
    file.seek(0)
    return file.read()
