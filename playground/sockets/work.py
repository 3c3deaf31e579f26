"""What runs beside a socket: by name and for as long as it is open, or to its end.

Knows: tasks. Must not know: what they do. Whatever is started here takes care of its own exceptions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from inference.serving.client import end_tasks


class Work:
    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._lasting: set[asyncio.Task[None]] = set()

    @property
    def is_busy(self) -> bool:
        return bool(self._tasks or self._lasting)

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """In place of an older task of this name."""
        self.stop(name)
        task = asyncio.create_task(work)
        self._tasks[name] = task
        task.add_done_callback(lambda done: self._tasks.pop(name) if self._tasks.get(name) is done else None)

    def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """To its end, though the socket may close."""
        task = asyncio.create_task(work)
        self._lasting.add(task)
        task.add_done_callback(self._lasting.discard)

    def stop(self, name: str) -> None:
        if (task := self._tasks.pop(name, None)) is not None:
            task.cancel()

    def cancel(self) -> None:
        """Stop all that has a name, save whoever calls this."""
        for task in self._tasks.values():
            if task is not asyncio.current_task():
                task.cancel()

    async def end(self) -> None:
        """Return when nothing runs any more."""
        if self._lasting:
            await asyncio.wait(self._lasting)
        await end_tasks(list(self._tasks.values()))
