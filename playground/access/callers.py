"""Who asks, and what they may: an account, and the key it came with, if a program came with one.

Knows: permissions and scopes. Must not know: HTTP, sockets, how a key is looked up. A right that a key gives is never
more than its account has.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib.auth.models import User

from playground.models import ApiKey

GENERATE, SCHEDULER, METRICS = "generate", "scheduler", "metrics"  # scopes of keys


@dataclass(frozen=True, slots=True)
class Caller:
    user: User
    key: ApiKey | None = None

    @property
    def is_limited(self) -> bool:
        """Whether limits of one account are for this one."""
        return not self.user.is_superuser


def may(caller: Caller, scope: str) -> bool:
    """Whether the caller may do what the scope stands for. Reads the database: the account's permissions."""
    if not caller.user.is_active or (caller.key is not None and scope not in caller.key.scopes):
        return False
    return _OF_ACCOUNT[scope](caller.user)


def may_chat(user: User) -> bool:
    return user.has_perm("playground.chat")


def may_watch(user: User) -> bool:
    return user.is_active and (user.is_staff or user.has_perm("playground.watch_scheduler"))


_OF_ACCOUNT = {GENERATE: may_chat, SCHEDULER: may_watch, METRICS: may_watch}
