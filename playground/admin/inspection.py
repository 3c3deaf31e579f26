"""What the page of one request shows, as plain data for its template.

Knows: rows, receipts, the ledger's records where they are kept. Must not know: HTML, who looks: it is told what may be
shown.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any, cast

from playground.admin import engines
from playground.admin.timeline import beside, iterations_lane, parts_lane, receipt_lines, ticks
from playground.admin.words import duration, percent
from playground.conversations import as_uuid
from playground.figures import milliseconds
from playground.models import InferenceRequest
from playground.replay import around

NEIGHBOURS = 12  # rows of the table of those who ran beside it
REPLAYS = 10


def page_of(row: InferenceRequest, *, may_read: bool) -> dict[str, Any]:
    """Everything but the columns that Django's own form shows."""
    records = engines.iteration_records(row)
    return {
        "receipt_lines": receipt_lines(row.receipt),
        "receipt_total": duration(milliseconds(row.receipt.get("total"))) if "total" in row.receipt else "",
        "timeline": timeline_of(row, records),
        "mates": mates_of(row, records),
        "details": row.receipt.get("details") or {},
        "caused": duration(row.caused_ms),
        "replays": replays_of(row, may_read=may_read),
        "texts": texts_of(row) if may_read else None,
        "pulse": pulse_of(row),
    }


def timeline_of(row: InferenceRequest, records: list[dict[str, Any]]) -> dict[str, Any] | None:
    """None for what has no receipt with a total."""
    total = milliseconds(row.receipt.get("total"))
    if not total:
        return None
    details = row.receipt.get("details") or {}
    first = min(100.0, 100 * row.ttft_ms / total) if row.ttft_ms else None
    return {
        "parts": parts_lane(row.receipt),
        "ticks": ticks(total),
        "iterations": iterations_lane(str(row.pk), records, row.created_at.timestamp(), total),
        "ends": [details[name] for name in ("first_iteration", "last_iteration") if details.get(name)],
        "first_token": None if first is None else round(first, 3),
        "first_token_on_the_right": first is not None and first > 70,
        "ttft": duration(row.ttft_ms),
        "preemptions": row.preemptions,
    }


def mates_of(row: InferenceRequest, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Who cost it most, then who shared most iterations with it; each once, with what is still known of them. `more`:
    how many others there were."""
    total = milliseconds(row.receipt.get("total"))
    costs = {mate["request_id"]: milliseconds(mate.get("ms")) for mate in _told_mates(row.receipt)}
    shared = dict(beside(str(row.pk), records))
    ids = list(dict.fromkeys([*sorted(costs, key=lambda mate: -costs[mate]), *shared]))
    shown = ids[:NEIGHBOURS]
    known = _known(shown)
    rows = [
        {
            "id": mate,
            "row": known.get(mate),
            "ms": duration(costs[mate]) if mate in costs else "",
            "share": percent(costs[mate], total) if mate in costs else "",
            "iterations": shared.get(mate),
        }
        for mate in shown
    ]
    return {"rows": rows, "more": len(ids) - len(shown)}


def replays_of(row: InferenceRequest, *, may_read: bool) -> list[dict[str, Any]]:
    """Of what was run again, the newest runs; of a replay, itself. With each what came of it."""
    runs = InferenceRequest.objects.select_related("owner", "replay_of")
    chosen = runs.filter(replay_of=row) if row.replay_of_id is None else runs.filter(pk=row.pk)
    found = []
    for again in chosen.order_by("-created_at")[:REPLAYS]:
        first = cast(InferenceRequest, again.replay_of)
        comparison = engines.compare(first, again)
        differs = comparison is not None and comparison.verdict == "differs"
        texts = around(first.answer, again.answer) if differs and may_read else None
        found.append({"row": again, "comparison": comparison, "texts": texts})
    return found


def texts_of(row: InferenceRequest) -> dict[str, Any]:
    row.refresh_from_db(fields=("messages", "prompt", "prompt_ids", "answer"))
    return {
        "messages": row.messages or [],
        "prompt": row.prompt,
        "prompt_ids": row.prompt_ids,
        "answer": row.answer,
    }


def pulse_of(row: InferenceRequest) -> str:
    """A word that changes when the page has something new to show; empty once nothing can change any more."""
    runs = [row, *row.replays.order_by("created_at").only("state", "cancel_requested")]
    if all(run.is_final for run in runs):
        return ""
    return " ".join(f"{run.state}{'!' if run.cancel_requested else ''}" for run in runs)


def _told_mates(receipt: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    mates = (receipt.get("details") or {}).get("batchmates") or ()
    return [mate for mate in mates if isinstance(mate, Mapping) and isinstance(mate.get("request_id"), str)]


def _known(ids: list[str]) -> dict[str, InferenceRequest]:
    pks: list[uuid.UUID] = [pk for text in ids if (pk := as_uuid(text))]
    rows = InferenceRequest.objects.filter(pk__in=pks).select_related("owner").only("state", "owner", "owner__username")
    return {str(row.pk): row for row in rows}
