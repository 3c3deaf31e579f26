"""Columns that Django has not got. Must not know: tables."""

from __future__ import annotations

from typing import Any

from django.db import models


class WrittenJSONField(models.JSONField):
    """JSON that is given back as it was written, names in their order and numbers in their form: a grammar made from a
    JSON Schema asks for properties in that order. PostgreSQL's jsonb, Django's choice, sorts names; its json does not.
    """

    def db_type(self, connection: Any) -> str | None:
        return "json" if connection.vendor == "postgresql" else super().db_type(connection)

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        adapted = super().get_db_prep_value(value, connection, prepared)
        if connection.vendor == "postgresql" and hasattr(adapted, "obj"):  # psycopg's Jsonb
            from psycopg.types.json import Json

            return Json(adapted.obj)
        return adapted

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        if connection.vendor == "postgresql":  # psycopg has read it
            return value
        return super().from_db_value(value, expression, connection)
