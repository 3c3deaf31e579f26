"""Which pages may open a browser socket: origins against cookies, as one table."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from support.sockets import HOST, Browser, cookie_of

from playground.sockets.origin import ExactOrigin, normal

pytestmark = pytest.mark.django_db(transaction=True)
REFUSED = "refused"


async def outcome(path: str, cookie: str | None, origin: str | None, host: str = HOST) -> Any:
    browser = Browser(path, cookie, origin, host)
    accepted, _ = await browser.connect(5)
    event = await browser.receive_output(5) if accepted else {"code": REFUSED}
    await browser.disconnect()
    return event.get("code", "open")


@pytest.mark.parametrize("path", ["/ws/chat/", "/ws/scheduler/"])
@pytest.mark.parametrize(
    ("origin", "host", "expected"),
    [
        ("http://localhost:8000", "localhost:8000", "open"),
        ("http://LOCALHOST:8000", "localhost:8000", "open"),
        ("http://127.0.0.1:8000", "127.0.0.1:8000", "open"),
        ("http://[::1]:8000", "[::1]:8000", "open"),
        ("http://localhost", "localhost:80", "open"),
        (None, "localhost:8000", REFUSED),
        ("null", "localhost:8000", REFUSED),
        ("", "localhost:8000", REFUSED),
        ("http://evil.example", "localhost:8000", REFUSED),
        ("http://evil.example:8000", "evil.example:8000", REFUSED),
        ("http://localhost:8001", "localhost:8000", REFUSED),
        ("http://localhost", "localhost:8000", REFUSED),
        ("https://localhost:8000", "localhost:8000", REFUSED),
        ("http://localhost:8000.evil.example", "localhost:8000", REFUSED),
        ("http://localhost:8000@evil.example", "localhost:8000", REFUSED),
        ("http://evil.example/http://localhost:8000", "localhost:8000", REFUSED),
        ("http://127.0.0.1:8000", "localhost:8000", REFUSED),
    ],
)
async def test_origins_with_a_good_cookie(
    path: str, origin: str | None, host: str, expected: str, staff: User, gateway: Any
) -> None:
    assert await outcome(path, await sync_to_async(cookie_of)(staff), origin, host) == expected


async def test_who_may_open_which_socket(alice: User, staff: User, gateway: Any) -> None:
    good = "http://localhost:8000"
    cookies = [None, "sessionid=no-such-session", *[await sync_to_async(cookie_of)(user) for user in (alice, staff)]]
    assert [await outcome("/ws/chat/", cookie, good) for cookie in cookies] == [4401, 4401, "open", "open"]
    assert [await outcome("/ws/scheduler/", cookie, good) for cookie in cookies] == [4401, 4401, 4403, "open"]
    assert [await outcome("/ws/none/", cookie, good) for cookie in cookies] == [REFUSED] * 4


def test_configured_origins_are_allowed_exactly() -> None:
    guard = ExactOrigin(None, ["localhost"], ["https://chat.example.org"])

    def allows(*headers: tuple[bytes, bytes]) -> bool:
        return guard.allows({"headers": [(b"host", b"localhost:8000"), *headers]})

    assert allows((b"origin", b"https://chat.example.org"))
    assert allows((b"origin", b"https://chat.example.org:443"))
    assert not allows((b"origin", b"http://chat.example.org"))
    assert not allows((b"origin", b"https://a.chat.example.org"))
    assert not allows((b"origin", b"https://chat.example.org"), (b"origin", b"https://chat.example.org"))


@pytest.mark.parametrize(
    "text", ["null", "", "localhost:8000", "file:///x", "ws://localhost:8000", "http://", "http://a b"]
)
def test_what_is_no_origin(text: str) -> None:
    assert normal(text) is None
