"""System checks of the set-up, run by `manage.py check` and before every command.

Each has an id. Errors stop the start; warnings are printed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import DatabaseError, connection

from playground.access.first_start import account_with_password_exists
from playground.config import unknown_variables


@register(Tags.security)
def variables_are_known(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    return [
        Warning(
            f"{name} is not a setting and changes nothing" + (f"; did you mean {meant}?" if meant else "."),
            id="playground.W001",
        )
        for name, meant in unknown_variables().items()
    ]


@register(Tags.security)
def open_address_has_a_host_name(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    config = settings.BATCHSCOPE
    if config.host not in ("0.0.0.0", "::") or config.allowed_hosts or config.origins:
        return []
    return [
        Warning(
            f"BATCHSCOPE_HOST is {config.host}, but only this machine's own names are accepted; "
            "name the others in BATCHSCOPE_ALLOWED_HOSTS.",
            id="playground.W002",
        )
    ]


@register(Tags.database)
def open_address_has_accounts(
    app_configs: Any, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Reads the database, so it runs where databases are checked: `manage.py check --database default`. Before there
    are tables it says nothing, so that `migrate` can make them."""
    if not databases or "auth_user" not in connection.introspection.table_names():
        return []
    return listening_problems()


def listening_problems() -> list[CheckMessage]:
    """Why BATCHSCOPE_HOST must not be listened on, if so (R17). Empty when it may. Whoever opens a port asks first."""
    config = settings.BATCHSCOPE
    if config.is_loopback:
        return []
    try:
        accounts = account_with_password_exists()
    except DatabaseError:
        accounts = False  # no tables yet: nobody has a password
    if accounts:
        return []
    return [
        Error(
            f"BATCHSCOPE_HOST is {config.host}, which other machines can reach, and no account has a password. "
            "Start once on 127.0.0.1, then set one with `manage.py changepassword admin`.",
            id="playground.E001",
        )
    ]
