"""The page about attention: heat maps as SVG, and tables, from the figures of `benchmarks.attention`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure

PAGE: Final = "attention.md"
PLACES: Final = "attention-places.svg"
LAYERS: Final = "attention-layers.svg"
FEW: Final = 10


def write(found: Mapping[str, Any], folder: Path) -> None:
    """The page and its two figures."""
    _places(found, folder / PLACES)
    _layers(found, folder / LAYERS)
    (folder / PAGE).write_text(_page(found), encoding="utf-8")


def _places(found: Mapping[str, Any], path: Path) -> None:
    maps = {
        "from the answer, no annotation": found["answer_to_documents"]["plain"],
        "from the answer, annotated": found["answer_to_documents"]["annotated"],
        "from the annotation": found["annotation_to_documents"],
    }
    names = [str(i + 1) for i in range(found["documents"])]
    _heat(path, maps, "place of the document in the prompt", "where the best document stands", names, mark=True)


def _layers(found: Mapping[str, Any], path: Path) -> None:
    layers = {arm: np.array(values) for arm, values in found["layers_at_middle"].items()}
    maps = {
        "no annotation": layers["plain"],
        "annotated": layers["annotated"],
        "annotated less not": layers["annotated"] - layers["plain"],
    }
    names = [str(i + 1) for i in range(len(layers["plain"]))]
    _heat(path, maps, "place of the document in the prompt", "layer", names, mark=False)


def _heat(path: Path, maps: Mapping[str, Any], x: str, y: str, rows: Sequence[str], *, mark: bool) -> None:
    figure = Figure(figsize=(10.5, 4.0 if mark else 5.6), layout="constrained", facecolor="white")
    axes = figure.subplots(1, len(maps), sharey=True)
    for axis, (title, values) in zip(axes, maps.items(), strict=True):
        grid = np.array(values)
        bound = float(np.abs(grid).max())
        signed = float(grid.min()) < 0
        image = axis.imshow(
            grid, cmap="RdBu" if signed else "viridis", vmin=-bound if signed else 0, vmax=bound, aspect="auto"
        )
        if mark:
            for place in range(len(grid)):
                axis.text(place, place, "o", ha="center", va="center", color="white", fontsize=8)
        axis.set_title(title, fontsize=10)
        axis.set_xticks(range(grid.shape[1]), [str(i + 1) for i in range(grid.shape[1])])
        figure.colorbar(image, ax=axis, shrink=0.8)
    step = max(1, len(rows) // 10)
    axes[0].set_yticks(range(0, len(rows), step), rows[::step])
    axes[0].set_ylabel(y)
    figure.supxlabel(x, fontsize=10)
    figure.savefig(path, metadata={"Date": None})


def _page(found: Mapping[str, Any]) -> str:
    on_best = {arm: _on_best(rows) for arm, rows in found["answer_to_documents"].items()}
    told = _on_best(found["annotation_to_documents"])
    even = 1 / found["documents"]
    rows = [
        _line(
            (
                *(str(place + 1), f"{on_best['plain'][place]:.3f}", f"{on_best['annotated'][place]:.3f}"),
                *(f"{told[place]:.3f}", *(f"{found['likelihood'][arm][place]:.3f}" for arm in ("plain", "annotated"))),
                *(_interval(values[place]) for values in found["likelihood_against_plain"].values()),
                _interval(found["likelihood_against_first_place"]["plain"][place]),
            )
        )
        for place in range(found["documents"])
    ]
    control = ("others named, less not",) if "misled" in found["likelihood_against_plain"] else ()
    few = " **So few questions show how it looks, and prove nothing.**" if found["questions"] < FEW else ""
    heads = (*_HEADS, *control, "not annotated, less first place")
    return f"""\
# Whom a model attends to

Written by `python -m benchmarks.attention` from `benchmarks/results/attention.json`, which names machine and versions.
Appendix B of the paper and its study of order sensitivity, at small scale: {found["model"]}, {found["questions"]}
questions made from a seed, {found["documents"]} documents of some 45 tokens each. One of them, the *best document*,
holds the answer and is ranked first by the retriever. It stands at each place in turn: without the order annotation,
with it (it names that document first), and, as a control, with one that names five others.

A share is of the attention that goes to documents, mean over layers, heads and tokens; evenly spread it would be
{even:.3f}. Log-likelihood is of a token of the right answer, in nats. Intervals are 95 % of paired bootstrap resamples
of the questions.{few}

{_line(heads)}
{_line("--:" for _ in heads)}
{chr(10).join(rows)}

![Attention to each document, by the place of the best one]({PLACES})

A row is a set of prompts in which the best document stands at that place (o).

![Attention from the answer by layer, the best document in the middle]({LAYERS})

The best document stands at place {found["documents"] // 2 + 1}; shares are of all attention.
"""


_HEADS: Final = (
    *("best document at", "share from the answer", "the same, annotated", "share from the annotation"),
    *("log-likelihood", "the same, annotated", "annotated less not"),
)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _on_best(rows: Sequence[Sequence[float]]) -> list[float]:
    return [row[place] for place, row in enumerate(rows)]


def _interval(values: Sequence[float]) -> str:
    value, low, high = values
    return f"{value:+.3f} ({low:+.3f} to {high:+.3f})"
