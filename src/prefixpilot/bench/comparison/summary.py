"""Figures of arms side by side, with intervals, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np

from prefixpilot.bench.comparison.arms import ArmName
from prefixpilot.bench.comparison.cells import CellResult, Setting
from prefixpilot.bench.comparison.client import Sample
from prefixpilot.bench.intervals import Floats, paired


class Ratio(NamedTuple):
    """Arrival over the arm: above 1 is better. ``low`` and ``high``: 95 % of paired bootstrap resamples of requests."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f}-{self.high:.2f})"


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """One arm in one setting, over all repeats.

    Attributes:
        requests: of one repeat.
        prompt_tokens, cached_tokens: by the engine's counts, the mean of the repeats.
        ttft_median_s, ttft_p95_s, ttft_sum_s: of the requests, each its median over the repeats; nearest rank.
        requests_per_s: of the fastest repeat.
        prefilled, ttft: against arrival: tokens computed, in all; and the median TTFT. ``None`` for arrival itself.
        prefill_time: against arrival: the sum of TTFTs, which is prefill time where requests go one at a time.
    """

    arm: ArmName
    requests: int
    prompt_tokens: int
    cached_tokens: int
    ttft_median_s: float
    ttft_p95_s: float
    ttft_sum_s: float
    requests_per_s: float
    prefilled: Ratio | None
    ttft: Ratio | None
    prefill_time: Ratio | None

    @property
    def prefilled_tokens(self) -> int:
        """What the engine had to compute."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def hit_rate(self) -> float:
        """Cached tokens as a share of the prompts'."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def as_json(self) -> dict[str, Any]:
        """All figures, by name."""
        ratios = {name: getattr(self, name) for name in ("prefilled", "ttft", "prefill_time")}
        plain = {name: getattr(self, name) for name in self.__slots__ if name not in ratios}
        derived = {"prefilled_tokens": self.prefilled_tokens, "hit_rate": round(self.hit_rate, 4)}
        return {**plain, **derived, **{k: None if v is None else v._asdict() for k, v in ratios.items()}}


def figures(results: Iterable[CellResult]) -> dict[Setting, tuple[ArmFigures, ...]]:
    """Figures of every setting whose arrival has run, in the order in which arms ran."""
    grouped: dict[Setting, dict[ArmName, list[CellResult]]] = {}
    for result in results:
        grouped.setdefault(result.cell.setting, {}).setdefault(result.cell.arm, []).append(result)
    return {
        setting: tuple(_figures(arm, runs, arms["arrival"]) for arm, runs in arms.items())
        for setting, arms in grouped.items()
        if "arrival" in arms
    }


class _Columns(NamedTuple):
    """Per request, in arrival order: the median over the repeats."""

    prefilled: Floats
    ttft: Floats


def _columns(runs: Sequence[CellResult]) -> _Columns:
    return _Columns(_over(runs, lambda sample: sample.prefilled_tokens), _over(runs, lambda sample: sample.ttft_s))


def _over(runs: Sequence[CellResult], value: Callable[[Sample], float]) -> Floats:
    rows = [[value(sample) for sample in sorted(run.samples, key=lambda s: s.number)] for run in runs]
    return np.median(np.array(rows, dtype=np.float64), axis=0)


def _figures(arm: ArmName, runs: Sequence[CellResult], arrival: Sequence[CellResult]) -> ArmFigures:
    mine, base = _columns(runs), _columns(arrival)
    ratios: list[Ratio | None] = [None, None, None]
    if arm != "arrival":
        ratios = [
            _ratio(base.prefilled, mine.prefilled, np.sum),
            _ratio(base.ttft, mine.ttft, np.median),
            _ratio(base.ttft, mine.ttft, np.sum),
        ]
    ordered = sorted(mine.ttft)
    return ArmFigures(
        arm,
        len(mine.ttft),
        round(sum(s.prompt_tokens for run in runs for s in run.samples) / len(runs)),
        round(sum(s.cached_tokens for run in runs for s in run.samples) / len(runs)),
        float(median(mine.ttft)),
        float(ordered[-(-95 * len(ordered) // 100) - 1]),
        float(np.sum(mine.ttft)),
        max(len(run.samples) / run.wall_s for run in runs),
        *ratios,
    )


def _ratio(base: Floats, mine: Floats, total: Callable[..., Any]) -> Ratio:
    return Ratio(*paired(base, mine, lambda b, m: _divided(total(b, axis=-1), total(m, axis=-1))))


def _divided(above: Any, below: Any) -> Any:
    return np.asarray(above, dtype=np.float64) / np.maximum(np.asarray(below, dtype=np.float64), 1e-9)


Expected = Mapping[Setting, Mapping[ArmName, float]]
"""Hit rates by setting and arm."""


def markdown(found: Mapping[Setting, Sequence[ArmFigures]], predicted: Expected | None = None) -> str:
    """A table a setting. ``predicted``: what `replay` expects."""
    expected: Expected = predicted or {}
    tables = (f"**{setting}**\n\n{_table(arms, expected.get(setting, {}))}" for setting, arms in found.items())
    return "\n\n".join(tables) + "\n"


_HEADS: Final = (
    "arm",
    "prompt tokens",
    "cached",
    "hit rate",
    "replay says",
    "computed, arrival / arm",
    "TTFT median",
    "TTFT p95",
    "TTFT median, arrival / arm",
    "TTFT sum, arrival / arm",
    "requests/s",
)


def _table(arms: Sequence[ArmFigures], expected: Mapping[ArmName, float]) -> str:
    rows = [_HEADS, ("---", *["---:"] * (len(_HEADS) - 1))]
    for arm in arms:
        counts = arm.arm, f"{arm.prompt_tokens:,}", f"{arm.cached_tokens:,}", f"{arm.hit_rate:.3f}"
        says = f"{expected[arm.arm]:.3f}" if arm.arm in expected else ""
        times = _or(arm.prefilled), f"{arm.ttft_median_s:.3f} s", f"{arm.ttft_p95_s:.3f} s"
        rows.append((*counts, says, *times, _or(arm.ttft), _or(arm.prefill_time), f"{arm.requests_per_s:.2f}"))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _or(ratio: Ratio | None) -> str:
    return "" if ratio is None else str(ratio)
