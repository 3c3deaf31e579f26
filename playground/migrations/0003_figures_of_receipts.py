"""Requests that are over get the figures that their rows and receipts have; receipts had no details then."""

from django.db import migrations

FIGURES = ("queue_ms", "ttft_ms", "total_ms")
BATCH = 500


def fill(apps, schema_editor):
    rows = apps.get_model("playground", "InferenceRequest").objects
    over = rows.exclude(finished_at=None).only("receipt", "created_at", "first_token_at", "finished_at")
    batch = []
    for row in over.iterator(chunk_size=BATCH):
        queue = row.receipt.get("queue")
        row.queue_ms = float(queue) if isinstance(queue, int | float) else 0.0
        row.ttft_ms = _ms(row.created_at, row.first_token_at)
        row.total_ms = _ms(row.created_at, row.finished_at)
        batch.append(row)
        if len(batch) == BATCH:
            rows.bulk_update(batch, FIGURES)
            batch = []
    rows.bulk_update(batch, FIGURES)


def _ms(start, end):
    return max(0.0, (end - start).total_seconds() * 1000) if end else 0.0


class Migration(migrations.Migration):
    dependencies = [("playground", "0002_inspection")]  # noqa: RUF012

    operations = [migrations.RunPython(fill, migrations.RunPython.noop)]  # noqa: RUF012
