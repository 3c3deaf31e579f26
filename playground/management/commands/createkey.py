"""Makes an API key for a program and prints it, alone on the last line, so that scripts can read it."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError
from django.utils import timezone

from playground.access.callers import GENERATE
from playground.access.keys import create_key
from playground.management.accounts import account_named
from playground.models import SCOPES

LONGEST_NAME = 100  # as the column has it


class Command(BaseCommand):
    help = "Makes an API key; the key is the last line. It can't be shown again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--name", required=True, help="what the key is for")
        parser.add_argument("--user", default="", help="name of the account; default: the local admin")
        parser.add_argument(
            "--scope", action="append", help=f"what it opens, once for each: {', '.join(SCOPES)}; default: {GENERATE}"
        )
        parser.add_argument("--days", type=float, help="for which it is valid; default: until it is revoked")

    def handle(self, *args: Any, **options: Any) -> None:
        name, days = options["name"].strip(), options["days"]
        if not 1 <= len(name) <= LONGEST_NAME:
            raise CommandError(f"the name has {len(name)} characters; it must have 1 to {LONGEST_NAME}")
        if days is not None and not 0 < days <= 36500:
            raise CommandError(f"a key is valid for more than 0 and at most 36500 days, not for {days:g}")
        expires_at = None if days is None else timezone.now() + timedelta(days=days)
        try:
            account = account_named(options["user"])
            key, secret = create_key(account, name, options["scope"] or (GENERATE,), expires_at)
        except DatabaseError:
            raise CommandError(
                "the database can't be used; start the service once, or run `manage.py migrate`"
            ) from None
        except ValueError as error:
            raise CommandError(str(error)) from None
        until = "until it is revoked" if expires_at is None else f"until {expires_at:%Y-%m-%d %H:%M} UTC"
        scopes = ", ".join(scope for scope in SCOPES if scope in key.scopes)
        self.stdout.write(f"The key {name!r} of {account.get_username()}, for {scopes}, is valid {until}:")
        self.stdout.write(secret)
