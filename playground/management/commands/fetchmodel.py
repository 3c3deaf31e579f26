"""Fetches the model of BATCHSCOPE_MODEL and converts it once, so that later starts are quick."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any, Literal

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from inference.execution.models.errors import ModelError
from inference.execution.models.prepare import prepare_model


class Command(BaseCommand):
    help = "Fetches and converts the default model, or converts the given GGUF file."
    requires_system_checks: list[str] | tuple[str, ...] | Literal["__all__"] = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("model", nargs="?", default="", help="instead of BATCHSCOPE_MODEL")

    def handle(self, *args: Any, **options: Any) -> None:
        config = settings.BATCHSCOPE.engine_config()
        try:
            folder = prepare_model(options["model"] or config.model, config.model_cache, self._progress)
        except ModelError as error:
            raise CommandError(str(error)) from None
        self._progress(f"the model is ready in {folder}")

    def _progress(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()
