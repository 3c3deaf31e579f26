"""The words of the contract (reasons, parts of a receipt, ends) as people read them, and numbers as they scan them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext_lazy as _

# Parts of a receipt in the order of time.
PARTS: dict[str, Any] = {
    "queue": _("in queue"),
    "prefill": _("its own prefill"),
    "decode": _("its own decode"),
    "batchmates": _("for batch-mates"),
    "preempted": _("preempted"),
    "stalled": _("engine stalled"),
    "deliver": _("delivery"),
}
REASONS: dict[str, Any] = {
    "accept": _("on its way to the engine"),
    "earlier": _("in a queue that was lost"),
    "iteration": _("for the end of an iteration"),
    "no_seat": _("no seat free"),
    "no_kv": _("no KV blocks free"),
    "no_budget": _("token budget used up"),
    "policy": _("batching policy"),
    "behind": _("behind another one"),
    "user_cap": _("limit of its user"),
    "paused": _("engine paused"),
}
FINISHES: dict[str, Any] = {
    "stop": _("stop"),
    "length": _("length"),
    "cancelled": _("cancelled"),
    "expired": _("expired"),
    "error": _("error"),
}


def reason_of(name: str) -> Any:
    return REASONS.get(name, name)


def duration(ms: float) -> str:
    """Three figures and a unit: "0.42 ms", "38.1 ms", "412 ms", "1.52 s", "3 min 5 s"."""
    if ms < 999.5:
        return f"{_figures(ms)} ms"
    if ms < 59_950:
        return f"{_figures(ms / 1000)} s"
    seconds = round(ms / 1000)
    return f"{seconds // 60} min {seconds % 60} s"


def percent(part: float, whole: float) -> str:
    if whole <= 0:
        return ""
    share = 100 * part / whole
    return f"{share:.1f} %" if share >= 0.05 or share == 0 else "< 0.1 %"


def moment(at: datetime | None) -> str:
    """To the millisecond: who came before whom is often told by those."""
    return timezone.localtime(at).isoformat(sep=" ", timespec="milliseconds")[:23] if at else "-"


def short_id(request_id: Any) -> str:
    return str(request_id)[:8]


def _figures(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
