"""Every socket address."""

from __future__ import annotations

from channels.security.websocket import WebsocketDenier
from django.urls import path, re_path

from playground.sockets.chat import ChatSocket
from playground.sockets.scheduler import SchedulerSocket

urlpatterns = [
    path("ws/chat/", ChatSocket.as_asgi()),
    path("ws/scheduler/", SchedulerSocket.as_asgi()),
    re_path("", WebsocketDenier.as_asgi()),  # no such address: refused, where the router would raise
]
