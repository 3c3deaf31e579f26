"""`manage.py serve`: the whole service on this machine, until Ctrl-C or SIGTERM."""

import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from playground.checks import listening_problems
from playground.serve import CannotStart, serve


class Command(BaseCommand):
    help = "Starts broker, engine and web, keeps them running, and prints a login link for the local admin."

    def handle(self, *args: Any, **options: Any) -> None:
        if problems := listening_problems():
            sys.exit("batchscope: " + " ".join(str(problem.msg) for problem in problems))
        try:
            sys.exit(serve(settings.BATCHSCOPE))
        except CannotStart as error:
            sys.exit(f"batchscope: {error}")
