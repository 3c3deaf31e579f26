"""Every socket address."""

from __future__ import annotations

from typing import Any

from channels.security.websocket import WebsocketDenier
from django.urls import path, re_path

from playground.sockets.chat import ChatSocket
from playground.sockets.scheduler import SchedulerSocket

chat: Any = ChatSocket.as_asgi()
scheduler: Any = SchedulerSocket.as_asgi()
denier: Any = WebsocketDenier.as_asgi()
urlpatterns: list[Any] = [
    path("ws/chat/", chat),
    path("ws/v1/", chat),
    path("ws/scheduler/", scheduler),
    re_path("", denier),  # no such address: refused, where the router would raise
]
