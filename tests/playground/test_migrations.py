"""Rows of an earlier version get what later ones have."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from support.admin import add

figures_of_receipts = import_module("playground.migrations.0003_figures_of_receipts")


def test_figures_of_old_receipts(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures_of_receipts, "BATCH", 2)
    rows = []
    for receipt in ({"queue": 12.5, "total": 900.0}, {}, {"queue": {"no_seat": 1.0}}):
        row = add(alice, state="completed", receipt=receipt)
        row.first_token_at = row.created_at + timedelta(milliseconds=300)
        row.finished_at = row.created_at + timedelta(milliseconds=900)
        row.save()
        rows.append(row)
    running = add(alice, state="running")
    figures_of_receipts.fill(apps, None)
    for row in (*rows, running):
        row.refresh_from_db()
    assert [row.queue_ms for row in rows] == [12.5, 0.0, 0.0]
    assert {(row.ttft_ms, row.total_ms) for row in rows} == {(300.0, 900.0)}
    assert (running.queue_ms, running.ttft_ms, running.total_ms) == (0.0, 0.0, 0.0)
