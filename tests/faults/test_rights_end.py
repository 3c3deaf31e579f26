"""Signing out and revoking a key end what streams, in a whole service, within the five seconds that are promised."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
import websockets
from support.api_keys import make_key, manage
from support.server import Answer, Chat, Server

PROMISED = 5.0  # seconds


async def begin(chat: Chat) -> None:
    request_id = await chat.generate("story 1 please", max_tokens=600, temperature=0)
    answer = Answer()
    while answer.seq < 3:
        message = await chat.receive()
        if message.get("request_id") == request_id:
            answer.take(message)


async def code_of_close(chat: Chat, within: float = PROMISED) -> int:
    async def listen() -> None:
        while True:
            await chat.receive()

    with pytest.raises(websockets.ConnectionClosed) as closed:
        await asyncio.wait_for(listen(), within)
    return closed.value.rcvd.code


@pytest.fixture
def own_server(make_server: Any) -> Server:
    server: Server = make_server()
    server.start().login()
    return server


async def test_signing_out_in_another_tab(own_server: Server) -> None:
    server = own_server
    async with server.chat() as chat, server.chat("/ws/scheduler/") as viewer:
        await begin(chat)
        headers = {"X-CSRFToken": server.cookies["csrftoken"]}
        answer = httpx.post(f"{server.base_url}/logout/", cookies=server.cookies, headers=headers)
        assert answer.status_code == 302
        assert await code_of_close(chat) == 4401
        assert await code_of_close(viewer) == 4401


async def test_a_revoked_key(own_server: Server) -> None:
    server = own_server
    secret = await asyncio.to_thread(make_key, server)
    connecting = websockets.connect(
        f"ws://127.0.0.1:{server.port}/ws/v1/", additional_headers={"Authorization": f"Bearer {secret}"}, max_size=None
    )
    async with connecting as connection, server.chat() as neighbour:
        chat = Chat(connection)
        await begin(chat)
        revoking = "from playground.access.keys import *; [revoke(key) for key in ApiKey.objects.all()]"
        done = asyncio.create_task(asyncio.to_thread(manage, server, "shell", "-c", revoking))
        assert await code_of_close(chat, 30) == 4401  # a process has to start first that revokes it
        await done
        await begin(neighbour)
