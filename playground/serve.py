"""The supervisor: a private broker, one engine and the web, started in order, kept running, and stopped together.

Knows: who needs whom. Must not know: what travels through the broker (save heartbeats), what a person reads meanwhile
(narration.py), sockets, torch. All children die with this process, however it dies (tether.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

from django.core.management import call_command
from django.db import DatabaseError, connections

from inference.serving.broker import UNREACHABLE, Broker
from inference.serving.messages import EngineStatus
from playground import private_broker
from playground.access.first_start import local_admin
from playground.access.login_links import create_link
from playground.config import PROJECT_FOLDER, Settings
from playground.engine_watch import count_own_faults, watch_engine
from playground.narration import Narrator, say
from playground.processes import Child

FAILED_EVERY = 30.0  # seconds between renewals of the status of an engine that was given up
# Seconds. However it goes, all is over 5 s after the drain timeout.
END_WITHIN = 3.0  # for web and engine, beyond that timeout
BROKER_WITHIN = 0.7
READ_WITHIN = 3.0  # for what is still to be read of answers, once the engine has gone
HURRY_WITHIN = 2.0  # for both after a second signal


class CannotStart(RuntimeError):
    """Nothing was started, or all of it was stopped again. One sentence for a person."""


def serve(config: Settings) -> int:
    """Run until SIGTERM, SIGINT or SIGHUP; the exit status. Raises CannotStart."""
    started_at = time.monotonic()
    with _only_one(config.data_dir), _listen(config.host, config.port) as listener:
        try:
            return asyncio.run(Supervisor(config, listener, started_at).run())
        except private_broker.BrokerError as error:
            raise CannotStart(str(error)) from None


@contextlib.contextmanager
def _only_one(data_dir: Path) -> Generator[None]:
    with open(data_dir / "serve.lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CannotStart(
                "another Batchscope runs on this data folder; stop it, or set BATCHSCOPE_DATA_DIR to another folder"
            ) from None
        yield


def _listen(host: str, port: int) -> socket.socket:
    """The socket the web serves. Held here, so that a port that is taken is told before anything starts, and clients
    that come while the web restarts wait instead of being refused."""
    bare = host.strip("[]")
    try:
        family = socket.getaddrinfo(bare, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((bare, port), family=family, backlog=1024)
    except OSError as error:
        reasons = {
            errno.EADDRINUSE: f"port {port} on {host} is taken; stop what listens there, or set BATCHSCOPE_PORT",
            errno.EACCES: f"port {port} needs rights that this user lacks; set BATCHSCOPE_PORT to 1024 or more",
        }
        no_address = f"{host} is no address of this machine; set BATCHSCOPE_HOST"
        raise CannotStart(reasons.get(error.errno or 0, no_address)) from None


class Supervisor:
    def __init__(self, config: Settings, listener: socket.socket, started_at: float) -> None:
        self._config, self._listener, self._started_at = config, listener, started_at
        self._folder = private_broker.runtime_folder(config.data_dir)
        self._redis_url = config.redis_url or private_broker.url_of(self._folder)
        self._broker = Broker(self._redis_url)
        # With a broker that others use too, the name must say which machine this is.
        self._engine_name = socket.gethostname() if config.redis_url else "engine-1"
        env = {
            **os.environ,
            "BATCHSCOPE_REDIS_URL": self._redis_url,
            "BATCHSCOPE_DATA_DIR": str(config.data_dir),
            "BATCHSCOPE_TEACHING_CONTROLS": "on" if config.has_controls else "off",
            "PYTHONUNBUFFERED": "1",
        }
        manage = [sys.executable, str(PROJECT_FOLDER / "manage.py")]
        handle = listener.fileno()
        self._engine = Child(
            "engine", [*manage, "engine", "--name", self._engine_name], env, on_exit=self._engine_ended
        )
        self._web = Child("web", [*manage, "web", "--fd", str(handle)], env, pass_fds=(handle,))
        self._narrator = Narrator(config, listener, self._broker, self._engine_name, self._engine.gave_up)
        self._pair = (self._web, self._engine)
        self._children = [*self._pair]
        self._stop = asyncio.Event()
        self._signals = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._last_failure = ""  # why we stop though nobody asked
        self._failure: EngineStatus | None = None  # what the engine said when it could not start

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)
        try:
            await self._start_broker()
            self._tasks.append(asyncio.create_task(count_own_faults(self._broker)))
            await self._start(self._engine)
            link = await asyncio.to_thread(self._prepare)
            await self._start(self._web)
            watching = watch_engine(self._engine, self._engine_name, self._broker, self._config.hang_timeout)
            self._tasks.append(asyncio.create_task(watching))
            starting = asyncio.create_task(self._narrator.start(link, self._started_at))
            await self._stop.wait()
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return 1 if self._last_failure else 0
        finally:
            await self._stop_all()
            if self._last_failure:
                say(f"batchscope: {self._last_failure}")

    def _on_signal(self) -> None:
        """Once: end when nothing is under way. Twice: at once, in order. Thrice: somehow."""
        self._signals += 1
        self._stop.set()
        if self._signals == 2:
            for child in self._pair:
                child.tell()
                asyncio.get_running_loop().call_later(HURRY_WITHIN, child.kill)
        elif self._signals > 2:
            for child in self._children:
                child.kill()

    # Starting

    async def _start_broker(self) -> None:
        if self._config.redis_url:
            return
        broker = Child("broker", private_broker.command(self._folder), dict(os.environ))
        self._children.append(broker)
        await self._start(broker)
        await asyncio.to_thread(private_broker.wait_until_up, self._folder)

    async def _start(self, child: Child) -> None:
        await child.start()
        self._tasks.append(asyncio.create_task(child.keep_running(), name=child.name))
        self._tasks.append(asyncio.create_task(self._when_given_up(child)))

    def _prepare(self) -> str:
        """Tables, the local admin, and a login link. In a thread of its own, beside the engine's start."""
        try:
            call_command("migrate", verbosity=0, interactive=False)
            return create_link(local_admin(), self._config.base_url)
        except DatabaseError as error:
            raise CannotStart(f"the database can't be used: {error}") from None
        finally:
            connections.close_all()

    # Running

    async def _when_given_up(self, child: Child) -> None:
        await child.gave_up.wait()
        if child is not self._engine:
            self._last_failure = f"the {child.name} process ends again and again; the reason stands above"
            self._stop.set()
            return
        say(
            "engine: it ended 5 times within a minute and is not started again; restart serve once the reason is mended"
        )
        while True:  # for as long as we live: health says why, and nobody waits for a heartbeat that never comes
            with contextlib.suppress(*UNREACHABLE):
                await self._broker.beat(f"{self._engine_name}@failed", self._failed_status(), 3 * FAILED_EVERY)
            await asyncio.sleep(FAILED_EVERY)

    async def _engine_ended(self, pid: int, status: int) -> None:
        """Take the dead engine's heartbeat away, so that the next one takes its requests over without delay."""
        with contextlib.suppress(*UNREACHABLE):
            for consumer, found in (await self._broker.statuses()).items():
                if found.name != self._engine_name or found.pid != pid:
                    continue
                if found.state == "failed":
                    self._failure = found  # it could say why itself
                else:
                    await self._broker.stop_beating(consumer)

    def _failed_status(self) -> EngineStatus:
        now = time.time()
        detail = self._failure.detail if self._failure else "the engine process ends again and again"
        blank = EngineStatus(self._engine_name, 0, "failed", False, now)
        return replace(self._failure or blank, state="failed", detail=detail, progress_at=now, epoch=int(now))

    # Stopping

    async def _stop_all(self) -> None:
        """Web and engine side by side; what they need stays for as long."""
        drain = self._config.drain_timeout if self._signals else 0.0
        if not self._signals:  # nobody asked for it, and something is amiss: they are not to wait for anything
            for child in self._pair:
                child.tell()
        elif drain:
            self._tasks.append(asyncio.create_task(self._narrator.drain()))
        await asyncio.gather(self._end_web(drain + END_WITHIN), self._end_engine(drain + END_WITHIN))
        for child in self._children:
            await child.stop(BROKER_WITHIN)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # With a broker of our own: without the web nobody reads what the engine writes, and without the engine no answer
    # goes on. With another, both may serve others, or be served by them.

    async def _end_web(self, within: float) -> None:
        await self._web.stop(within)
        if not self._config.redis_url:
            self._engine.tell()

    async def _end_engine(self, within: float) -> None:
        await self._engine.stop(within)
        if not self._config.redis_url:
            asyncio.get_running_loop().call_later(READ_WITHIN, self._web.tell)
