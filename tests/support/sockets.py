"""A client's side of a socket, without a network: a browser with a cookie and an Origin, or a program with a key."""

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

    def __init__(
        self,
        path: str,
        cookie: str | None = None,
        origin: str | None = ORIGIN,
        host: str = HOST,
        authorization: str | None = None,
    ) -> None:
        from playground.asgi import application

        headers = [(b"host", host.encode())]
        if authorization is not None:
            headers.append((b"authorization", authorization.encode()))
        if origin is not None:
            headers.append((b"origin", origin.encode()))
        if cookie is not None:
            headers.append((b"cookie", cookie.encode()))
        super().__init__(application, path, headers)

    @classmethod
    async def of(cls, user: User, path: str = "/ws/chat/") -> Browser:
        return await cls(path, await sync_to_async(cookie_of)(user)).open()

    @classmethod
    async def with_key(cls, secret: str, path: str = "/ws/v1/") -> Browser:
        return await cls(path, origin=None, authorization=f"Bearer {secret}").open()

    async def open(self) -> Browser:
        accepted, _ = await self.connect(5)
        if not accepted:
            raise ConnectionError("the socket was refused")
        self.hello = await self.hear()
        return self

    async def ask(self, **message: Any) -> None:
        await self.send_json_to(message)

    async def hear(self, *types: str) -> Any:
        """The next frame, or the next of one of these types."""
        while True:
            frame = await self.receive_json_from(20)
            if not types or frame["type"] in types:
                return frame

    async def hear_until(self, kind: str) -> list[Any]:
        frames = [await self.hear()]
        while frames[-1]["type"] != kind:
            frames.append(await self.hear())
        return frames

    async def closed_with(self) -> int:
        """The code of the close; frames before it are skipped."""
        return (await self.closing())["code"]

    async def closing(self, timeout: float = 5) -> Any:
        event = await self.receive_output(timeout)
        while event["type"] != "websocket.close":
            event = await self.receive_output(timeout)
        return event

    async def outcome(self) -> Any:
        """What becomes of it: "refused" (no handshake), "open", or the code that it is closed with at once."""
        accepted, _ = await self.connect(5)
        event = await self.receive_output(5) if accepted else {"code": "refused"}
        await self.disconnect()
        return event.get("code", "open")
