"""How the admin's views, which are synchronous, reach the gateway, which lives on the event loop of the web process.

`async_to_sync` runs its work on the loop that the view itself was called from, the very loop the gateway was started
on; the view's thread waits, and lends itself to the database work that comes back.
"""

from __future__ import annotations

from typing import Any

import orjson
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured

from inference.serving.client import UNREACHABLE
from playground import replay
from playground.gateway import get_gateway
from playground.models import InferenceRequest
from playground.replay import Comparison

MOST_RECORDS = 2000  # iterations read for one page


def cancel(row: InferenceRequest) -> None:
    async_to_sync(get_gateway().cancel_any)(str(row.pk))


def start_replay(row: InferenceRequest, user: User) -> InferenceRequest:
    """Raises RequestRefused."""
    return async_to_sync(replay.start)(get_gateway(), row, user)


def compare(first: InferenceRequest, again: InferenceRequest) -> Comparison | None:
    """None until both are over, and where there is no broker to ask."""
    try:
        return async_to_sync(replay.compare)(get_gateway().client, first, again)
    except ImproperlyConfigured:
        return None


def iteration_records(row: InferenceRequest) -> list[dict[str, Any]]:
    """Those in which the request ran, as far as they are kept; none where the ledger is out of reach."""
    details = row.receipt.get("details") or {}
    epoch, first, last = (details.get(name) for name in ("epoch", "first_iteration", "last_iteration"))
    if not (epoch and first and last):
        return []
    last = min(last, first + MOST_RECORDS - 1)
    try:
        ledger = get_gateway().client.ledger
        found = async_to_sync(ledger.records)(details.get("engine") or row.engine, epoch, first, last)
    except (ImproperlyConfigured, *UNREACHABLE):
        return []
    return [orjson.loads(record) for record in found]
