"""Parameters keep the order of their names. On SQLite the column is text and stays as it is."""

from django.db import migrations

import playground.fields


def make_json(apps, schema_editor):
    _change(schema_editor, "json")


def make_jsonb(apps, schema_editor):
    _change(schema_editor, "jsonb")


def _change(schema_editor, kind):
    if schema_editor.connection.vendor == "postgresql":
        table = "playground_inferencerequest"
        schema_editor.execute(f"ALTER TABLE {table} ALTER COLUMN params TYPE {kind} USING params::{kind}")


class Migration(migrations.Migration):
    dependencies = (("playground", "0004_keys_and_quotas"),)

    operations = (
        migrations.SeparateDatabaseAndState(
            [migrations.RunPython(make_json, make_jsonb)],
            [
                migrations.AlterField(
                    "inferencerequest",
                    "params",
                    playground.fields.WrittenJSONField(default=dict, verbose_name="parameters"),
                )
            ],
        ),
    )
