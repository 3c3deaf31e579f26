"""API keys of a server that runs as a process of its own, and clients that come with them."""

from __future__ import annotations

import os
import subprocess
import sys

import httpx
import openai
from support.server import OWN, ROOT, Server


def manage(server: Server, *words: str) -> str:
    """What `manage.py WORDS` prints, over the server's data."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(OWN)}
    env |= server.environment
    command = [sys.executable, str(ROOT / "manage.py"), *words]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=60).stdout


def make_key(server: Server, *scopes: str, user: str = "") -> str:
    """A key of `user`, else of the local admin."""
    chosen = [word for scope in scopes for word in ("--scope", scope)]
    of_user = ("--user", user) if user else ()
    return manage(server, "createkey", "--name", "test", *chosen, *of_user).splitlines()[-1]


def openai_client(server: Server, key: str, **options: object) -> openai.OpenAI:
    options = {"max_retries": 0, "timeout": 60.0, **options}
    return openai.OpenAI(base_url=f"{server.base_url}/v1", api_key=key, **options)


def http_client(server: Server, key: str | None) -> httpx.Client:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(base_url=server.base_url, headers=headers, timeout=60.0)


def make_account(server: Server, name: str) -> None:
    """An account that may chat and no more."""
    manage(server, "shell", "-c", f"from django.contrib.auth.models import User; User.objects.create_user({name!r})")
