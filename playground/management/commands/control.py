"""`manage.py control`: the teaching controls without a browser."""

from __future__ import annotations

import asyncio
import time
from argparse import ArgumentParser
from dataclasses import replace
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from inference.limits import ACTIONS, NAMES
from inference.scheduling.request import RequestRefused
from inference.serving.client import UNREACHABLE, Control, EngineClient, EngineStatus
from playground import private_broker
from playground.controls import hand_on, named

WITHIN = 3.0  # seconds for an engine's answer: it renews its status twice a second
LOOK_EVERY = 0.1  # seconds


class Command(BaseCommand):
    help = "Pauses, steps, slows or resizes a running engine, and prints what it says of itself then."
    requires_system_checks: Any = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("action", choices=(*ACTIONS, "show"), help="`slow MS` and `policy NAME` take a value")
        parser.add_argument("value", nargs="?", default="", help="of slow: ms an iteration, 0 is full speed; of policy")
        parser.add_argument("--engine", default="", help="which one; default: the only one there is")
        for name in NAMES:
            parser.add_argument(f"--{name.replace('_', '-')}", type=int, help="of set")

    def handle(self, *args: Any, **options: Any) -> None:
        config = settings.BATCHSCOPE
        if config.teaching_controls == "off":
            raise CommandError("BATCHSCOPE_TEACHING_CONTROLS is off")
        url = config.redis_url or private_broker.url_of(private_broker.runtime_folder(config.data_dir))
        try:
            status = asyncio.run(self._ask(url, _control(options)))
        except RequestRefused as error:
            raise CommandError(str(error)) from None
        except UNREACHABLE:
            raise CommandError("there is no broker; start `manage.py serve`, or set BATCHSCOPE_REDIS_URL") from None
        self.stdout.write(_line(status))

    async def _ask(self, url: str, control: Control) -> EngineStatus:
        client = EngineClient(url)
        try:
            status = named(await client.engines(), control.engine)
            if control.action == "show":
                return status
            await hand_on(client, replace(control, engine=status.name))
            return await _answer(client, status)
        finally:
            await client.close()


async def _answer(client: EngineClient, before: EngineStatus) -> EngineStatus:
    """What the engine says once it has answered. Raises CommandError where it refuses, which it alone can where its
    requests would not fit any more, and where no answer comes."""
    until = time.monotonic() + WITHIN
    while time.monotonic() < until:
        await asyncio.sleep(LOOK_EVERY)
        status = named(await client.engines(), before.name)
        if status.epoch != before.epoch:
            raise CommandError(f"{before.name} has been started anew; ask again")
        if status.answered == before.answered:
            continue
        if status.refused is not None:
            raise CommandError(f"{status.name} refuses: {status.refused['text']}")
        return status
    raise CommandError(f"{before.name} has not answered within {WITHIN:g} s; an iteration under way ends first")


def _control(options: dict[str, Any]) -> Control:
    action, value = options["action"], options["value"]
    values: dict[str, Any] = {name: options[name] for name in NAMES}
    if action == "slow":
        values["ms"] = _number(value)
    elif value:
        values["policy"] = value  # of another action, it is refused by that name
    return Control(options["engine"], action, **values, by="the command line")


def _number(value: str) -> float | None:
    try:
        return float(value) if value else None
    except ValueError:
        raise CommandError(f"slow takes a number of milliseconds, not {value!r}") from None


def _line(status: EngineStatus) -> str:
    settings_ = status.settings
    state = "paused" if status.paused else "running" if status.busy else status.state
    parts = [f"{status.name}: {state}", *([f"{status.slow_ms:g} ms an iteration"] if status.slow_ms else [])]
    parts += [f"{name} {settings_[name]}" for name in ("policy", *NAMES) if name in settings_]
    return ", ".join(parts)
