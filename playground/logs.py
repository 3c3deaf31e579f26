"""Logs: one line an event on stderr, key=value or JSON. What users ask and are answered is never logged.

Knows: formats and levels. Must not know: requests, the database.
"""

from __future__ import annotations

import logging.config
from typing import Any

import structlog

# What a line may say beside its event, and nothing else: no text of anybody can come in by another name.
FIELDS = (
    *("request_id", "code", "reason", "user", "key", "waiting", "count", "attempt", "engine"),
    *("prompt_tokens", "completion_tokens", "ms"),
)


def logging_settings(level: str, log_format: str) -> dict[str, Any]:
    """A dictConfig for the standard library's loggers; structlog's own events take the same way."""
    renderer = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.processors.LogfmtRenderer(
            key_order=["timestamp", "level", "logger", "event"], bool_as_flag=False
        )
    )
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": [structlog.stdlib.ExtraAdder(allow=FIELDS), *_SHARED],
                "processors": [
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    _traceback_in_line,
                    renderer,
                ],
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            "daphne": {"level": "WARNING"},
            "asyncio": {"level": "WARNING"},
            # Answers of 4xx are the client's affair, and their paths may hold a login token.
            "django.request": {"level": "ERROR"},
            "django.security": {"level": "CRITICAL"},
            # Their debug lines hold what pages and rows hold: texts, and a key when it is made.
            "django.template": {"level": "INFO"},
            "django.db.backends": {"level": "INFO"},
        },
    }


def configure_logs(settings: dict[str, Any]) -> None:
    logging.config.dictConfig(settings)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _traceback_in_line(logger: Any, method: str, event: Any) -> Any:
    """A traceback as one field, so that an event stays one line."""
    return structlog.processors.format_exc_info(logger, method, event)


_SHARED = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.PositionalArgumentsFormatter(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)
