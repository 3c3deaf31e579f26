"""Words for the person who waits: one line a stage, on stderr, so that stdout holds results alone.

Knows: nothing else.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

Say = Callable[[str], None]


class Progress:
    """`stage` for each of the `stages` there are, `say` for what goes on within one."""

    def __init__(self, stages: int) -> None:
        self._stages, self._done, self._begun = stages, 0, time.perf_counter()

    def stage(self, name: str) -> None:
        self._done += 1
        self._print(f"[{self._done}/{self._stages}] {name}")

    def say(self, what: str) -> None:
        self._print(f"      {what}")

    def _print(self, line: str) -> None:
        print(f"{time.perf_counter() - self._begun:6.0f} s  {line}", file=sys.stderr, flush=True)
