"""A TCP proxy that can cut what goes through it, as a broken network does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Proxy:
    """`port` leads to `target`.  connections: how many have been made through it."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.carried = 0  # bytes, from the server to clients

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, to_there = await asyncio.open_connection("127.0.0.1", self._target)
        self._open |= {writer, to_there}
        with contextlib.suppress(OSError):
            await asyncio.gather(self._copy(reader, to_there, False), self._copy(there, writer, True))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counts: bool) -> None:
        try:
            while data := await reader.read(1 << 16):
                self.carried += len(data) if counts else 0
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()
            self._open.discard(writer)

    def cut(self) -> None:
        """All connections, without a goodbye."""
        for writer in self._open:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def proxy_to(port: int) -> AsyncIterator[Proxy]:
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
