"""Calls under an Idempotency-Key are each API key's own. They are kept for a day, and begin anew."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = (("playground", "0005_params_as_written"),)

    operations = (
        migrations.DeleteModel("IdempotentCall"),
        migrations.CreateModel(
            name="IdempotentCall",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key", models.CharField(max_length=255)),
                ("body_hash", models.CharField(max_length=64)),
                ("request_ids", models.JSONField(default=list)),
                ("created_at", models.DateTimeField(auto_now_add=True, db_index=True)),
                (
                    "api_key",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="playground.apikey"
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("api_key", "key"), name="one_call_of_a_key")],
            },
        ),
    )
