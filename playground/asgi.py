"""The web process as one ASGI application: HTTP by Django, sockets by Channels.

The gateway is started by the first socket or health check that needs it, on the loop that serves.
"""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "playground.settings")
django_application = get_asgi_application()

# What follows needs Django's apps to be loaded.
from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from django.conf import settings  # noqa: E402

from playground.http.body import BodyLimit  # noqa: E402
from playground.sockets.doors import Doors  # noqa: E402
from playground.sockets.origin import ExactOrigin  # noqa: E402
from playground.sockets.urls import urlpatterns  # noqa: E402

programs = URLRouter(urlpatterns)
browsers = ExactOrigin(AuthMiddlewareStack(programs), settings.ALLOWED_HOSTS, settings.BATCHSCOPE.origins)
application = ProtocolTypeRouter(
    {
        "http": BodyLimit(django_application, settings.BODY_LIMIT),
        "websocket": Doors(programs, browsers, settings.ALLOWED_HOSTS),
    }
)
