"""The plot of throughput and latency over offered load, as SVG. It has a background of its own, so it can be read on
light and dark pages.

Knows: matplotlib (the extra `bench`). Must not know: how the points were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.load import Point

# Okabe and Ito's colours, which most kinds of colour-blindness tell apart; each line has a marker of its own as well.
LOOKS = {"static": ("#d55e00", "s"), "dynamic": ("#0072b2", "^"), "continuous": ("#009e73", "o")}
PAPER, INK, GRID = "#fbfaf7", "#222222", "#d8d5cc"


def draw(points: Sequence[Point], target: Path) -> None:
    """Raises ImportError where matplotlib is not installed."""
    import matplotlib

    words = {"svg.fonttype": "none", "svg.hashsalt": "batchscope", "font.family": "sans-serif", "font.size": 10}
    with matplotlib.rc_context({**words, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK}):
        figure = figure_of(points)
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, format="svg", facecolor=PAPER, metadata={"Date": None})


def figure_of(points: Sequence[Point]) -> Any:
    """Two pictures side by side: throughput, latency."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), facecolor=PAPER, layout="constrained")
    through, latency = figure.subplots(1, 2)
    latency.set_yscale("log")
    for policy, (colour, marker) in LOOKS.items():
        mine = sorted((point for point in points if point.policy == policy), key=lambda point: point.rate)
        rates = [point.rate for point in mine]
        look = {"color": colour, "marker": marker, "markersize": 5, "linewidth": 1.8}
        through.plot(rates, [point.tokens_per_second for point in mine], label=policy, **look)
        latency.plot(rates, [point.latency_p50 for point in mine], label=f"{policy}, p50", **look)
        latency.plot(rates, [point.latency_p95 for point in mine], label=f"{policy}, p95", linestyle=":", **look)
    rates = sorted({point.rate for point in points})
    _finish(through, "output tokens/s", rates)
    through.set_ylim(bottom=0)
    _finish(latency, "latency of a request, s", rates)
    latency.yaxis.set_major_formatter("{x:g}")
    return figure


def _finish(axes: Any, title: str, rates: Sequence[float]) -> None:
    axes.set_facecolor(PAPER)
    axes.set_title(title, loc="left")
    axes.set_xlabel("offered load, requests/s")
    axes.set_xscale("log", base=2)
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.minorticks_off()
    axes.grid(color=GRID, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)
    axes.legend(frameon=False, fontsize=8)
