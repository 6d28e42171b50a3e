"""Figures of a quality run: each arm's scores, and what changes from one arm to another, with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from prefixpilot.bench.intervals import Floats, Interval, paired
from prefixpilot.bench.quality.cases import Case, QualityArm
from prefixpilot.bench.quality.runner import Result
from prefixpilot.bench.quality.scoring import evidence_recall, exact_match, f1

SCORES: Final = ("f1", "exact_match", "log_likelihood")
MIN_DIFFERING: Final = 10
"""Of fewer cases whose prompts differ no interval says anything."""


class ArmScores(NamedTuple):
    """Means over the cases.

    Attributes:
        changed: cases whose prompt is not that of arrival.
        f1, exact_match: of the answers, in [0, 1].
        log_likelihood: of a token of the reference answer, in nats.
        evidence: share of the evidence in the prompt; ``None`` if the workload names none.
        prompt_tokens: by the engine's tokenizer.
        same_answer: share of the answers that are, to the letter, those of arrival.
    """

    arm: QualityArm
    cases: int
    changed: int
    f1: float
    exact_match: float
    log_likelihood: float
    evidence: float | None
    prompt_tokens: float
    same_answer: float


class Difference(NamedTuple):
    """An arm less another, the mean over the cases with 95 % intervals.

    Attributes:
        differing: cases in which their prompts differ.
    """

    arm: QualityArm
    base: QualityArm
    differing: int
    f1: Interval
    exact_match: Interval
    log_likelihood: Interval

    @property
    def losses(self) -> tuple[str, ...]:
        """The scores that are worse beyond their intervals; none if too few cases differ."""
        known = SCORES if self.differing >= MIN_DIFFERING else ()
        return tuple(name for name in known if getattr(self, name).high < 0)


@dataclass(frozen=True, slots=True)
class QualityReport:
    """What a run found.

    Attributes:
        about: workload, engine, sampling, versions, machine.
        differences: of each arm to arrival, and to the arm before it.
    """

    about: Mapping[str, Any]
    arms: tuple[ArmScores, ...]
    differences: tuple[Difference, ...]

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        told = [
            {**entry._asdict(), **{name: getattr(entry, name)._asdict() for name in SCORES}, "losses": entry.losses}
            for entry in self.differences
        ]
        return {**self.about, "arms": [arm._asdict() for arm in self.arms], "differences": told}


class _Row(NamedTuple):
    """One result, scored."""

    prompt: str
    answer: str
    f1: float
    exact_match: float
    log_likelihood: float
    evidence: float | None
    prompt_tokens: int


def report(results: Iterable[Result], about: Mapping[str, Any]) -> QualityReport:
    """Score what was answered. At least one case, with all its arms."""
    by_arm: dict[QualityArm, list[_Row]] = {}
    for result in results:
        by_arm.setdefault(result.arm, []).append(_row(result.case, result))
    names = list(by_arm)
    pairs = [
        (arm, base)
        for i, arm in enumerate(names)
        for base in dict.fromkeys(("arrival", *names[i - 1 : i]))
        if arm != base
    ]
    arms = tuple(_scores(arm, rows, by_arm["arrival"]) for arm, rows in by_arm.items())
    return QualityReport(about, arms, tuple(_difference(arm, base, by_arm) for arm, base in pairs if arm != "arrival"))


def _row(case: Case, result: Result) -> _Row:
    scored = result.scored
    return _Row(
        result.prompt,
        scored.answer,
        f1(scored.answer, case.references),
        exact_match(scored.answer, case.references),
        scored.log_likelihood / scored.tokens,
        evidence_recall(case.text(result.arm), case.evidence),
        scored.prompt_tokens,
    )


def _scores(arm: QualityArm, rows: Sequence[_Row], arrival: Sequence[_Row]) -> ArmScores:
    evidence = [row.evidence for row in rows if row.evidence is not None]
    pairs = list(zip(rows, arrival, strict=True))
    found, exact, likely = (float(_column(rows, name).mean()) for name in SCORES)
    return ArmScores(
        arm,
        len(rows),
        sum(row.prompt != base.prompt for row, base in pairs),
        found,
        exact,
        likely,
        sum(evidence) / len(evidence) if evidence else None,
        sum(row.prompt_tokens for row in rows) / len(rows),
        sum(row.answer == base.answer for row, base in pairs) / len(rows),
    )


def _difference(arm: QualityArm, base: QualityArm, by_arm: Mapping[QualityArm, Sequence[_Row]]) -> Difference:
    mine, other = by_arm[arm], by_arm[base]
    differing = sum(a.prompt != b.prompt for a, b in zip(mine, other, strict=True))
    return Difference(arm, base, differing, *(_less(_column(other, name), _column(mine, name)) for name in SCORES))


def _less(base: Floats, mine: Floats) -> Interval:
    return paired(base, mine, lambda b, m: (m - b).mean(axis=-1))


def _column(rows: Sequence[_Row], name: str) -> Floats:
    return np.array([getattr(row, name) for row in rows], dtype=np.float64)


def markdown(found: QualityReport) -> str:
    """Two tables: the arms, and their differences."""
    heads = "arm", "cases", "changed", "F1", "exact", "log-likelihood", "evidence", "prompt tokens", "same answer"
    arms = [
        (
            arm.arm,
            *(f"{arm.cases:,}", f"{arm.changed:,}", f"{arm.f1:.3f}", f"{arm.exact_match:.3f}"),
            *(f"{arm.log_likelihood:.3f}", "-" if arm.evidence is None else f"{arm.evidence:.3f}"),
            *(f"{arm.prompt_tokens:,.0f}", f"{arm.same_answer:.2f}"),
        )
        for arm in found.arms
    ]
    less = [
        (
            f"{entry.arm} - {entry.base}",
            f"{entry.differing:,}",
            *(_told(getattr(entry, name)) for name in SCORES),
            _lost(entry),
        )
        for entry in found.differences
    ]
    second = "difference", "differing", "F1", "exact", "log-likelihood", "loss beyond the interval"
    return f"{_table(heads, arms)}\n\n{_table(second, less)}\n"


def _lost(entry: Difference) -> str:
    if 0 < entry.differing < MIN_DIFFERING:
        return "too few cases"
    return ", ".join(entry.losses).replace("_", " ") or "none"


def _told(interval: Interval) -> str:
    return f"{interval.value:+.3f} ({interval.low:+.3f} to {interval.high:+.3f})"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
