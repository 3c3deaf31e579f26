"""Prints a one-time login link, alone on its line, so that scripts can read it."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from playground.access.login_links import create_link
from playground.management.accounts import account_named


class Command(BaseCommand):
    help = "Prints a link that signs an account in once, within 24 hours."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--user", default="", help="name of the account; default: the local admin")

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(create_link(account_named(options["user"]), settings.BATCHSCOPE.base_url))
