"""A WebSocket client that may break the protocol: frames as bytes."""

from __future__ import annotations

import base64
import os
import socket
import struct
from typing import Any

TEXT, BINARY, CLOSE, PING = 1, 2, 8, 9


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, rsv: int = 0, masked: bool = True,
          length: int | None = None) -> bytes:  # fmt: skip
    """length: the one that is claimed, where it is not the payload's."""
    length = len(payload) if length is None else length
    first = (0x80 if fin else 0) | rsv << 4 | opcode
    mask_bit = 0x80 if masked else 0
    if length < 126:
        head = struct.pack("!BB", first, mask_bit | length)
    elif length < 1 << 16:
        head = struct.pack("!BBH", first, mask_bit | 126, length)
    else:
        head = struct.pack("!BBQ", first, mask_bit | 127, length)
    if not masked:
        return head + payload
    mask = os.urandom(4)
    return head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))


class RawSocket:
    def __init__(self, port: int, path: str, headers: dict[str, str], receive_buffer: int | None = None,
                 patience: float = 20.0) -> None:  # fmt: skip
        """receive_buffer: bytes.  patience: seconds that the server may take for anything."""
        self._socket = socket.socket()
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.settimeout(patience)
        self._socket.connect(("127.0.0.1", port))
        self._data = b""
        key = base64.b64encode(os.urandom(16)).decode()
        lines = {
            "Host": f"127.0.0.1:{port}",
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": key,
            "Sec-WebSocket-Version": "13",
            **headers,
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.send(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
        while b"\r\n\r\n" not in self._data:
            self._more()
        answer, _, self._data = self._data.partition(b"\r\n\r\n")
        self.status = int(answer.split()[1])

    def __enter__(self) -> RawSocket:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> tuple[int, bytes]:
        """Opcode and payload of the next frame; (-1, b"") where the connection ends without one."""
        try:
            while (parsed := self._parse()) is None:
                self._more()
        except (ConnectionError, EOFError):
            return -1, b""
        return parsed

    def close_code(self) -> int:
        """Read on until the close frame: its code; 1006 where there is none."""
        while True:
            opcode, payload = self.receive()
            if opcode == CLOSE:
                return struct.unpack("!H", payload[:2])[0] if payload else 1005
            if opcode == -1:
                return 1006

    def _more(self) -> None:
        more = self._socket.recv(1 << 16)
        if not more:
            raise EOFError
        self._data += more

    def _parse(self) -> tuple[int, bytes] | None:
        data = self._data
        if len(data) < 2:
            return None
        length, start = data[1] & 0x7F, 2
        if length >= 126:
            size = 2 if length == 126 else 8
            if len(data) < 2 + size:
                return None
            length, start = int.from_bytes(data[2 : 2 + size]), 2 + size
        if len(data) < start + length:
            return None
        self._data = data[start + length :]
        return data[0] & 0x0F, data[start : start + length]
