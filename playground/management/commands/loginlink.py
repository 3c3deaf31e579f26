"""Prints a one-time login link, alone on its line, so that scripts can read it."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError

from playground.access.first_start import local_admin
from playground.access.login_links import create_link


class Command(BaseCommand):
    help = "Prints a link that signs an account in once, within 24 hours."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--user", default="", help="name of the account; default: the local admin")

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(create_link(self._account(options["user"]), settings.BATCHSCOPE.base_url))

    def _account(self, name: str) -> Any:
        if not name:
            return local_admin()
        found = get_user_model().objects.filter(username=name, is_active=True).first()
        if found is None:
            raise CommandError(f"there is no active account named {name!r}")
        return found
