"""Who may open a browser socket: pages of this very origin (scheme, host and port), and of the origins in the settings.

A browser sends cookies with a socket from any page, and no CSRF token; the Origin header is all there is. Channels' own
AllowedHostsOriginValidator ignores the port. Programs without an Origin have routes of their own, with keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from channels.security.websocket import WebsocketDenier
from django.http.request import split_domain_port, validate_host

DEFAULT_PORTS = {"http": "80", "https": "443"}


def normal(origin: str) -> str | None:
    """`scheme://host:port` in lower case with its port written, or None for what is not an origin ("null", a path)."""
    scheme, separator, rest = origin.lower().partition("://")
    if not separator or scheme not in DEFAULT_PORTS:
        return None
    host, port = split_domain_port(rest)
    if not host:
        return None
    return f"{scheme}://{host}:{port or DEFAULT_PORTS[scheme]}"


class ExactOrigin:
    """Refuses (403) a socket unless its one Origin is allowed."""

    def __init__(self, application: Any, allowed_hosts: Collection[str], origins: Iterable[str]) -> None:
        self.application = application
        self.allowed_hosts = allowed_hosts
        self.origins = {normal(origin) for origin in origins}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        application = self.application if self.allows(scope) else WebsocketDenier()
        return await application(scope, receive, send)

    def allows(self, scope: Any) -> bool:
        origins = [value.decode("latin1") for name, value in scope["headers"] if name == b"origin"]
        origin = normal(origins[0]) if len(origins) == 1 else None
        return origin is not None and (origin in self.origins or origin == self._own(scope))

    def _own(self, scope: Any) -> str | None:
        """The origin that the request itself was sent to, as long as its Host is one of ours (else: DNS rebinding)."""
        host = _host(scope)
        if host is None or not host_is_ours(scope, self.allowed_hosts):
            return None
        return normal(("https://" if scope.get("scheme") == "wss" else "http://") + host)


def host_is_ours(scope: Any, allowed_hosts: Collection[str]) -> bool:
    """Whether the request was sent to a name of this service, as Django asks of HTTP."""
    domain, _ = split_domain_port((_host(scope) or "").lower())
    return bool(domain) and validate_host(domain, list(allowed_hosts))


def _host(scope: Any) -> str | None:
    hosts = [value.decode("latin1") for name, value in scope["headers"] if name == b"host"]
    return hosts[0] if len(hosts) == 1 else None
