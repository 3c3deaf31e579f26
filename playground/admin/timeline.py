"""A request's time as a picture: places and widths for an inline SVG, in percent, so that it fits every screen.

Knows: the form of a receipt and of iteration records. Must not know: the database, HTML.
Two lanes: what the time went for, from the receipt, in the order of the parts; and, where the ledger still has them,
the iterations that it took part in, at their real times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from playground.admin.words import PARTS, duration, percent, reason_of
from playground.figures import milliseconds

TICKS = 4
LABELLED = 14.0  # percent that a part must be wide to have its name in it
NARROWEST = 0.15  # percent; a part that took time can be seen
GAP = 5.0  # ms between two iterations that are still drawn as one stretch


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the receipt's table. `depth` 1: a reason of the line above."""

    kind: str
    name: Any
    ms: float
    share: str
    width: float  # percent of the total
    depth: int = 0

    @property
    def time(self) -> str:
        return duration(self.ms)


@dataclass(frozen=True, slots=True)
class Mark:
    """Something from x to x + width, both in percent."""

    kind: str
    x: float
    width: float
    title: str
    label: str = ""

    @property
    def middle(self) -> float:
        return round(self.x + self.width / 2, 3)


def receipt_lines(receipt: Mapping[str, Any]) -> list[Line]:
    """Parts in the order of time, each of the queue's reasons under it, dearest first."""
    total = milliseconds(receipt.get("total"))
    details = receipt.get("details")
    if not isinstance(details, Mapping):
        details = {}
    lines = []
    for part, name in PARTS.items():
        if part not in receipt:
            continue
        lines.append(_line(part, name, milliseconds(receipt[part]), total))
        reasons = details.get(part)
        if part == "queue" and isinstance(reasons, Mapping):
            dearest = sorted(((milliseconds(ms), reason) for reason, ms in reasons.items()), reverse=True)
            lines += [_line(part, reason_of(reason), ms, total, 1) for ms, reason in dearest]
    return lines


def parts_lane(receipt: Mapping[str, Any]) -> list[Mark]:
    """The parts one after another; what they lack of the total stays empty at the end."""
    total = milliseconds(receipt.get("total")) or sum(milliseconds(receipt.get(part)) for part in PARTS)
    marks: list[Mark] = []
    x = 0.0
    for part, name in PARTS.items():
        ms = milliseconds(receipt.get(part))
        if not ms or not total:
            continue
        width = min(max(100 * ms / total, NARROWEST), 100 - x)
        title = f"{name}: {duration(ms)}, {percent(ms, total)}"
        marks.append(Mark(part, round(x, 3), round(width, 3), title, str(name) if width >= LABELLED else ""))
        x += width
    return marks


def ticks(total: float) -> list[Mark]:
    """Times under the picture; the first and the last are aligned with its ends."""
    places = range(TICKS + 1)
    kinds = ["start", *["middle"] * (TICKS - 1), "end"]
    return [Mark(kinds[i], 100 * i / TICKS, 0.0, "", duration(total * i / TICKS) if i else "0") for i in places]


def iterations_lane(
    request_id: str, records: Iterable[Mapping[str, Any]], accepted_at: float, total: float
) -> list[Mark]:
    """Stretches of iterations in which the request was, prefill and decode apart, at their times.

    records: of the ledger, oldest first.  accepted_at: Unix seconds where the picture begins.  total: its ms.
    """
    stretches: list[tuple[str, float, float, int, int]] = []  # phase, start and end in ms, first and last n
    for record in records:
        phase = next((row["kind"] for row in record["rows"] if row["request_id"] == request_id), None)
        if phase is None:
            continue
        start = (record["started_at"] - accepted_at) * 1000
        end = start + sum(milliseconds(record.get(name)) for name in ("schedule", "forward", "sample", "commit"))
        last = stretches[-1] if stretches else ("", 0.0, 0.0, 0, -1)
        if last[0] == phase and last[4] + 1 == record["n"] and start - last[2] <= GAP:
            _, begun, _, first, _ = last
            stretches[-1] = phase, begun, end, first, record["n"]
        else:
            stretches.append((phase, start, end, record["n"], record["n"]))
    return [_stretch(*stretch, total) for stretch in stretches] if total > 0 else []


def _stretch(phase: str, start: float, end: float, first: int, last: int, total: float) -> Mark:
    x = min(max(0.0, 100 * start / total), 100 - NARROWEST)
    width = min(max(100 * end / total - x, NARROWEST), 100 - x)
    numbers = f"{first}" if first == last else f"{first}-{last}"
    return Mark(phase, round(x, 3), round(width, 3), f"{phase} {numbers}: {duration(max(0.0, end - start))}")


def beside(request_id: str, records: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """(request, iterations shared) of those that were in a batch with it, most first."""
    shared: dict[str, int] = {}
    for record in records:
        ids = [row["request_id"] for row in record["rows"]]
        if request_id in ids:
            for other in ids:
                if other != request_id:
                    shared[other] = shared.get(other, 0) + 1
    return sorted(shared.items(), key=lambda item: -item[1])


def _line(part: str, name: Any, ms: float, total: float, depth: int = 0) -> Line:
    width = min(100.0, 100 * ms / total) if total else 0.0
    return Line(part, name, ms, percent(ms, total), round(width, 3), depth)
