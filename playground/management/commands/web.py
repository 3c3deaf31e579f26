"""`manage.py web`: one web process. `serve` starts it; where there are many, start them yourself."""

import sys
from argparse import ArgumentParser
from typing import Any

import setproctitle
from django.conf import settings
from django.core.management.base import BaseCommand

from playground.checks import listening_problems
from playground.web import run_daphne


class Command(BaseCommand):
    help = "Runs one web process (Daphne) against BATCHSCOPE_REDIS_URL and BATCHSCOPE_DATABASE_URL."
    requires_system_checks: Any = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--fd", type=int, help="a listening socket inherited from the parent process")

    def handle(self, *args: Any, fd: int | None = None, **options: Any) -> None:
        config = settings.BATCHSCOPE
        if not config.redis_url:
            sys.exit("batchscope: set BATCHSCOPE_REDIS_URL, or use `manage.py serve`, which starts a broker of its own")
        if fd is None and (problems := listening_problems()):
            sys.exit("batchscope: " + " ".join(str(problem.msg) for problem in problems))
        setproctitle.setproctitle("web")
        run_daphne(["--fd", str(fd)] if fd is not None else ["--bind", config.host, "--port", str(config.port)])
