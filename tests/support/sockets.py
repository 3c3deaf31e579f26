"""A browser's side of a socket, without a network: Channels' communicator with a cookie and an Origin."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import User
from django.test import Client

HOST = "localhost:8000"
ORIGIN = f"http://{HOST}"


def cookie_of(user: User) -> str:
    client = Client()
    client.force_login(user)
    return f"sessionid={client.cookies['sessionid'].value}"


class Browser(WebsocketCommunicator):
    """`open` returns the hello frame; `ask` sends a message; `hear` receives one."""

    def __init__(self, path: str, cookie: str | None = None, origin: str | None = ORIGIN, host: str = HOST) -> None:
        from playground.asgi import application

        headers = [(b"host", host.encode())]
        if origin is not None:
            headers.append((b"origin", origin.encode()))
        if cookie is not None:
            headers.append((b"cookie", cookie.encode()))
        super().__init__(application, path, headers)

    @classmethod
    async def of(cls, user: User, path: str = "/ws/chat/") -> Browser:
        browser = cls(path, await sync_to_async(cookie_of)(user))
        accepted, _ = await browser.connect(5)
        if not accepted:
            raise ConnectionError("the socket was refused")
        browser.hello = await browser.hear()
        return browser

    async def ask(self, **message: Any) -> None:
        await self.send_json_to(message)

    async def hear(self, *types: str) -> Any:
        """The next frame, or the next of one of these types."""
        while True:
            frame = await self.receive_json_from(5)
            if not types or frame["type"] in types:
                return frame

    async def hear_until(self, kind: str) -> list[Any]:
        frames = [await self.hear()]
        while frames[-1]["type"] != kind:
            frames.append(await self.hear())
        return frames

    async def closed_with(self) -> int:
        event = await self.receive_output(5)
        while event["type"] != "websocket.close":
            event = await self.receive_output(5)
        return event["code"]
