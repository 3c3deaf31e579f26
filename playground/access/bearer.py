"""The key that a request carries, for both doors of programs.

Knows: the Authorization header (RFC 6750). Must not know: keys, accounts, cookies.
"""

from __future__ import annotations

from collections.abc import Iterable


def bearer_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """What stands behind `Authorization: Bearer` in ASGI's headers. None where there is no such header, or another
    beside it: of two keys none is taken."""
    found = [value for name, value in headers if name.lower() == b"authorization"]
    if len(found) != 1:
        return None
    scheme, _, secret = found[0].decode("latin1").strip().partition(" ")
    return secret.strip() or None if scheme.lower() == "bearer" else None
