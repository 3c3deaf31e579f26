"""Static files: whitenoise, for a server that is asynchronous and may not have collected its files."""

from __future__ import annotations

import os
from typing import Any

from django.http import HttpRequest, HttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware


class StaticFiles(WhiteNoiseMiddleware):
    def add_files(self, root: str, prefix: str | None = None) -> None:
        if os.path.isdir(root):  # STATIC_ROOT exists only after `manage.py collectstatic`
            super().add_files(root, prefix)

    @staticmethod
    def serve(static_file: Any, request: HttpRequest) -> Any:
        """The whole file at once: they are small, and under ASGI Django reads a file iterator whole anyhow."""
        found = static_file.get_response(request.method, request.META)
        content = b""
        if found.file is not None:
            with found.file as file:
                content = file.read()
        response = HttpResponse(content, status=int(found.status))
        del response["Content-Type"]
        for name, value in found.headers:
            response[name] = value
        return response
