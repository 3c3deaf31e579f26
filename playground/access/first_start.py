"""What the first start makes: the data folder, the secret key, the local admin.

Nothing here runs twice: what exists is kept. Must not know: sockets, the broker.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django.contrib.auth.models import User

LOCAL_ADMIN = "admin"
SHORTEST_KEY = 32


class FirstStartError(Exception):
    """The data folder can't be used; the message says why and what to change."""


def data_folder(path: Path) -> Path:
    """The folder, made if need be, readable by its owner only. Raises FirstStartError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise FirstStartError(
            f"the data folder {path} can't be made: {error.strerror}; set BATCHSCOPE_DATA_DIR"
        ) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise FirstStartError(f"the data folder {path} is not writable; set BATCHSCOPE_DATA_DIR to one that is")
    return path


def secret_key(folder: Path) -> str:
    """The key in `folder`/secret_key, made with mode 0600 at the first call. Raises FirstStartError.

    Several processes may start at once: the file appears whole, under its name, and the first one wins.
    """
    path = folder / "secret_key"
    try:
        if not path.exists():
            _write_once(path, secrets.token_urlsafe(50))
        key = path.read_text().strip()
    except OSError as error:
        raise FirstStartError(f"the secret key {path} can't be read or made: {error.strerror}") from None
    if len(key) < SHORTEST_KEY:
        raise FirstStartError(f"the secret key {path} is damaged; delete the file, and everybody signs in again")
    return key


def _write_once(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()


def local_admin() -> User:
    """The superuser of this machine, made without a password if missing: a login link is its way in."""
    from django.contrib.auth.models import User

    existing = User.objects.filter(is_superuser=True, is_active=True).order_by("pk").first()
    return existing or User.objects.create_superuser(LOCAL_ADMIN, password=None)


def account_with_password_exists() -> bool:
    """Whether somebody can sign in from afar, without a login link."""
    from django.contrib.auth.models import User

    accounts = User.objects.filter(is_active=True)
    return any(account.has_usable_password() for account in accounts.iterator())
