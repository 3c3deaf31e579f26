"""Tables in Markdown, and the section that a run adds to bench/RESULTS.md.

Knows: how figures are written. Must not know: how they were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"
Cell = str | float | int | None


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """A Markdown table. Raises ValueError where a row has more or fewer cells than there are heads."""
    for row in rows:
        if len(row) != len(heads):
            raise ValueError(f"a row has {len(row)} cells, and there are {len(heads)} columns")
    lines = [heads, ["---"] * len(heads), *([cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(value: Cell) -> str:
    """Three figures that count: 1234, 12.3, 1.23, 0.012; nothing for None."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    size = abs(value)
    if isinstance(value, int) or size >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 or not size else f"{value:.3f}"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"


def times(ratio: float) -> str:
    return f"{ratio:.2f} x" if ratio < 10 else f"{ratio:.1f} x"


def section(
    title: str, machine: str, versions: str, parts: Sequence[tuple[str, str]], now: datetime | None = None
) -> str:
    """One dated section: parts are (heading, text)."""
    date = (now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC")
    texts = [f"## {date}: {title}", f"Machine: {machine}.\nVersions: {versions}."]
    for heading, text in parts:
        texts += [f"### {heading}", text]
    return "\n\n".join(texts) + "\n"


def append(text: str, path: Path = RESULTS) -> None:
    """Add a section at the end of a file that exists or not; what is in it stays as it is."""
    before = path.read_text(encoding="utf-8") if path.exists() else "# Results\n"
    path.write_text(f"{before.rstrip()}\n\n{text}", encoding="utf-8")
