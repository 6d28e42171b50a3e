"""Plots of docs/benchmarks.md as SVG, by matplotlib: same figures, same bytes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

COLOURS = ("#b8b8b8", "#d9a066", "#8fb3d9", "#4878a8", "#c0392b", "#7f9f7f", "#9b7fb5", "#555555")


def bars(title: str, groups: Mapping[str, Mapping[str, float]]) -> str:
    """Horizontal bars: a group for each key, a bar for each entry."""
    arms = list(dict.fromkeys(arm for group in groups.values() for arm in group))
    figure, axes = _axes(title, 1.2 + 0.16 * (len(arms) + 1) * len(groups))
    middles = []
    for row, group in enumerate(groups.values()):
        top = row * (len(arms) + 1)
        middles.append(top + (len(arms) - 1) / 2)
        for arm, value in group.items():
            place = top + arms.index(arm)
            axes.barh(place, value, color=_colour(arms, arm), label=arm if row == 0 else None)
            axes.text(value, place, f" {value:.3f}", va="center", fontsize=7)
    axes.set_yticks(middles, list(groups))
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return _svg(figure)


def lines(title: str, panels: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]]) -> str:
    """A panel for each key, in it a line for each key, over requests."""
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(8.6, 0.5 + 2.1 * rows), layout="constrained")
    figure.suptitle(f"{title}, over requests", fontsize=10)
    for place, (name, series) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(rows, columns, place)
        for arm, (x, y) in series.items():
            axes.plot(x, y, color=_colour(list(series), arm), label=arm)
        axes.set_title(name, fontsize=9, loc="left")
        axes.set_ylim(bottom=0)
        if axes.get_ylim()[1] > 1000:
            axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return _svg(figure)


def _colour(arms: Sequence[str], arm: str) -> str:
    return COLOURS[arms.index(arm) % len(COLOURS)]


def _axes(title: str, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8.6, height), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=10, loc="left")
    return figure, axes


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "prefixpilot"}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
