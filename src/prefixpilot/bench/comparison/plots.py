"""Plots of a comparison, as SVG files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefixpilot.bench.comparison.cells import CellResult, Setting
from prefixpilot.bench.comparison.summary import ArmFigures
from prefixpilot.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

try:
    from matplotlib.figure import Figure
except ImportError:
    raise MissingExtraError("matplotlib", 'pip install "prefixpilot[bench]"') from None

_COLOURS = {
    "arrival": "#8a94a3",
    "queue": "#5c6570",
    "popularity": "#c9a227",
    "walk": "#9c6fb0",
    "given": "#c0504d",
    "order": "#63b0e3",
    "annotated": "#2f7fb8",
    "deduped": "#14806a",
    "scheduled": "#b45f06",
}


def plot(folder: Path, found: Mapping[Setting, Sequence[ArmFigures]], results: Iterable[CellResult]) -> list[Path]:
    """Hit rates and TTFTs of all settings; then, for each, the distribution of TTFTs, and cached tokens over the run.

    Returns:
        the files written.
    """
    firsts: dict[Setting, list[CellResult]] = {}
    for result in results:
        if result.cell.repeat == 0 and result.cell.setting in found:
            firsts.setdefault(result.cell.setting, []).append(result)
    written = [
        _bars(folder / "hit-rate.svg", found, "hit rate (cached / prompt tokens)", lambda arm: arm.hit_rate),
        _bars(folder / "ttft-median.svg", found, "median TTFT (s)", lambda arm: arm.ttft_median_s),
    ]
    for number, (setting, runs) in enumerate(firsts.items(), 1):
        written.append(_lines(folder / f"ttft-{number}.svg", str(setting), runs, _distribution, "TTFT (s)", "share"))
        title, x, y = str(setting), "requests", "cached tokens so far"
        written.append(_lines(folder / f"cached-{number}.svg", title, runs, _cumulative, x, y))
    return written


def _bars(path: Path, found: Mapping[Setting, Sequence[ArmFigures]], label: str, value: Any) -> Path:
    names = list(dict.fromkeys(arm.arm for arms in found.values() for arm in arms))
    figure, axes = _axes(path, 1.5 + 0.28 * len(names) * len(found))
    for row, arms in enumerate(found.values()):
        for arm in arms:
            place = row * (len(names) + 1) + names.index(arm.arm)
            label_once = arm.arm if row == 0 else None
            axes.barh(place, value(arm), color=_COLOURS[arm.arm], label=label_once)
            axes.text(value(arm), place, f" {value(arm):.3f}", va="center", fontsize=8)
    middles = [row * (len(names) + 1) + (len(names) - 1) / 2 for row in range(len(found))]
    axes.set_yticks(middles, [str(setting) for setting in found])
    axes.invert_yaxis()
    axes.set_xlabel(label)
    return _saved(figure, axes, path)


def _lines(path: Path, title: str, runs: Sequence[CellResult], points: Any, x: str, y: str) -> Path:
    figure, axes = _axes(path, 3.4)
    for run in runs:
        axes.plot(*points(run), color=_COLOURS[run.cell.arm], label=run.cell.arm)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return _saved(figure, axes, path)


def _distribution(run: CellResult) -> tuple[list[float], list[float]]:
    times = sorted(sample.ttft_s for sample in run.samples)
    return times, [(i + 1) / len(times) for i in range(len(times))]


def _cumulative(run: CellResult) -> tuple[list[int], list[int]]:
    return list(range(1, len(run.samples) + 1)), list(accumulate(sample.cached_tokens for sample in run.samples))


def _axes(path: Path, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.5, height), layout="constrained")
    return figure, figure.subplots()


def _saved(figure: Figure, axes: Axes, path: Path) -> Path:
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)  # the best place takes seconds
    figure.savefig(path, metadata={"Date": None})
    return path
