"""`manage.py engine`: one engine process. `serve` starts it; where there are many, start them yourself."""

import os
import socket
import sys
from argparse import ArgumentParser
from typing import Any

import setproctitle
from django.conf import settings
from django.core.management.base import BaseCommand

from inference.serving.ledger_store import LedgerKeep
from inference.serving.worker import run_worker
from playground.config import Settings

LONGEST_NAME = 64  # characters: a request's row has the name of its engine


class Command(BaseCommand):
    help = "Runs one engine worker against BATCHSCOPE_REDIS_URL, until SIGTERM."
    requires_system_checks: Any = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--name", default="", help="how the scheduler page calls it; default: host and process number"
        )

    def handle(self, *args: Any, name: str, **options: Any) -> None:
        config = settings.BATCHSCOPE
        name = name or f"{socket.gethostname()[: LONGEST_NAME - 12]}-{os.getpid()}"
        if len(name) > LONGEST_NAME:
            sys.exit(f"batchscope: this engine's name has {len(name)} characters; it may have {LONGEST_NAME} at most")
        if not config.redis_url:
            sys.exit("batchscope: set BATCHSCOPE_REDIS_URL, or use `manage.py serve`, which starts a broker of its own")
        setproctitle.setproctitle("engine")
        keep, drain = _keep(config), config.drain_timeout
        status = run_worker(config.engine_config(), config.redis_url, name, keep=keep, drain_timeout=drain)
        if status == 0:  # all is said and given back; on a busy machine it takes torch seconds to be unloaded
            sys.stdout.flush()
            os._exit(0)
        sys.exit(status)


def _keep(config: Settings) -> LedgerKeep:
    """How much of the ledger is kept, and where."""
    return LedgerKeep(
        iterations=config.ledger_iterations,
        memory=int(config.ledger_memory),
        folder=config.ledger_folder,
        days=config.ledger_days,
        disk=int(config.ledger_disk),
    )
