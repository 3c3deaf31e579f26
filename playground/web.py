"""The web process: Daphne on a socket that the supervisor holds, or on an address of its own.

Knows: how Daphne is started. Must not know: torch, the engine, what the application does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

OPTIONS = (
    *("--verbosity", "0"),
    "--no-server-name",
    *("--websocket_timeout", "-1"),  # no longest life for a socket
    *("--websocket-max-message-size", str(256 << 10)),
    *("--websocket-max-frame-size", str(256 << 10)),
    *("--application-close-timeout", "5"),
)


def run_daphne(endpoint: Sequence[str]) -> None:
    """Serve until SIGTERM. `endpoint`: Daphne's arguments, such as ["--fd", "5"]."""
    import setproctitle

    setproctitle.setproctitle("web")
    from daphne.cli import CommandLineInterface

    CommandLineInterface().run([*endpoint, *OPTIONS, "playground.asgi:application"])


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "playground.settings")
    run_daphne(sys.argv[1:])


if __name__ == "__main__":
    main()
