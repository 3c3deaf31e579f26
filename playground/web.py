"""The web process: Daphne on a socket that the supervisor holds, or on an address of its own.

Knows: how Daphne is started, and that the gateway starts with it. Must not know: torch, the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

OPTIONS = (
    *("--verbosity", "0"),
    "--no-server-name",
    *("--websocket_timeout", "-1"),  # no longest life for a socket
    *("--websocket-max-message-size", str(256 << 10)),
    *("--websocket-max-frame-size", str(256 << 10)),
    *("--application-close-timeout", "5"),
    *("--ping-interval", "20"),
    *("--ping-timeout", "60"),  # more than a reader may be stuck: it is to hear why it is closed
)
_tasks: set[asyncio.Task[None]] = set()  # a loop itself holds its tasks only weakly


def run_daphne(endpoint: Sequence[str]) -> None:
    """Serve until SIGTERM. `endpoint`: Daphne's own arguments, such as ["--fd", "5"]."""
    from playground.daphne_server import WebServer  # installs Twisted's asyncio reactor
    from daphne.cli import CommandLineInterface  # isort:skip
    from twisted.internet import reactor  # isort:skip

    class Line(CommandLineInterface):
        server_class = WebServer

    reactor.callWhenRunning(_start_gateway)
    Line().run([*endpoint, *OPTIONS, "playground.asgi:application"])


def _start_gateway() -> None:
    """Rows of an earlier life are put back at once, not when the first browser comes."""
    from playground.gateway import get_gateway

    _tasks.add(asyncio.get_event_loop().create_task(get_gateway().ensure_started()))
