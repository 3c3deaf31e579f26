"""What `serve` tells a person while it starts and while it ends.

Knows: heartbeats of engines, the web's address. Must not know: processes, signals.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time

from inference.serving.broker import UNREACHABLE, Broker
from inference.serving.messages import EngineStatus
from playground.config import Settings

WATCH_EVERY = 0.1  # seconds, while starting
SAY_AFTER = 1.0  # seconds of an end that nothing is known to hold up


def say(line: str) -> None:
    with contextlib.suppress(OSError):  # whoever read us has gone; that is no reason to stop
        print(line, flush=True)


class Narrator:
    """listener: the socket the web serves.  engine: the name of ours.  gave_up: set when it is not started again."""

    def __init__(
        self, config: Settings, listener: socket.socket, broker: Broker, engine: str, gave_up: asyncio.Event
    ) -> None:
        self._config, self._listener = config, listener
        self._broker, self._engine, self._gave_up = broker, engine, gave_up

    async def start(self, link: str, started_at: float) -> None:
        """Say what is being waited for, and the login link once there is something behind it. started_at: monotonic."""
        web = asyncio.create_task(self._web_is_up())
        try:
            state = await self._engine_has_started()
            await web
        finally:
            web.cancel()
        seconds = time.monotonic() - started_at
        say(f"ready in {seconds:.1f} s" if state == "ready" else "without an engine; the web is up")
        say("sign in with this link (it works once, within a day):")
        say(link)

    async def drain(self) -> None:
        """Say what is waited for, if anything is."""
        status = await self._status()
        count = status.running + status.waiting if status is not None and not status.paused else 0
        if not count:
            await asyncio.sleep(SAY_AFTER)
        what = {0: "what is under way", 1: "1 answer under way"}.get(count, f"{count} answers under way")
        say(f"waiting for {what}, {self._config.drain_timeout:g} s at most; Ctrl-C once more stops at once")

    async def _engine_has_started(self) -> str:
        """Wait until the engine is ready or has failed, telling each change."""
        shown = ""
        while True:
            status = await self._status()
            if status is not None and status.state != "failed":
                line = f"engine: {status.detail} …" if status.state == "loading" else f"engine: {status.model} is ready"
                if line != shown:
                    say(line)
                    shown = line
                if status.state == "ready":
                    return "ready"
            elif status is not None or self._gave_up.is_set():
                say(f"engine: {status.detail if status else 'it ends again and again'}")
                return "failed"
            await asyncio.sleep(WATCH_EVERY)

    async def _web_is_up(self) -> None:
        """Return once the web answers. The socket listens already, so one question is enough unless the web dies."""
        host = self._listener.getsockname()[0]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(host, self._config.port)
                writer.write(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                answer = await reader.readline()
                writer.close()
                if answer:
                    say(f"web: listening on {self._config.base_url}")
                    return
            await asyncio.sleep(WATCH_EVERY)

    async def _status(self) -> EngineStatus | None:
        """The newest status of our engine."""
        try:
            statuses = [s for s in (await self._broker.statuses()).values() if s.name == self._engine]
        except UNREACHABLE:
            return None
        return max(statuses, key=lambda status: status.epoch, default=None)
