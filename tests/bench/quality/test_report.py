"""From answers to figures: a run goes on where it was, equal prompts are asked once, and losses are told from noise."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.bench.quality.test_cases import TOPICS

from prefixpilot.bench.quality.base import Bounds, Scored
from prefixpilot.bench.quality.cases import Messages, QualityArm, Sampling, draw_cases
from prefixpilot.bench.quality.report import QualityReport, markdown, report
from prefixpilot.bench.quality.runner import ANSWERS, run_cases
from prefixpilot.errors import ConfigError, EngineError

ARMS: tuple[QualityArm, ...] = ("arrival", "order", "annotated", "deduped")
CASES = draw_cases(TOPICS, Sampling(ARMS)).cases
ABOUT = {"workload": "topics"}


class Reader:
    """An engine that finds the answer with a likelihood of its own for prompts with an order annotation.

    Attributes:
        left: requests until it fails.
    """

    name = "reader"

    def __init__(self, with_annotation: float = -1.0, left: int = 10**6) -> None:
        self.asked: list[Messages] = []
        self._with_annotation = with_annotation
        self.left = left

    def measure(self, messages: Messages, reference: str, bounds: Bounds) -> Scored:
        self.left -= 1
        if self.left < 0:
            raise EngineError("gone")
        self.asked.append(messages)
        told = "Please read the context" in messages[-1]["content"]
        noise = len(messages[-1]["content"]) % 7 / 100
        each = (self._with_annotation if told else -1.0) + noise
        return Scored(reference if told else "no idea", each * 2, 2, 100)


def found(engine: Reader, folder: Path) -> QualityReport:
    return report(run_cases(engine, CASES, Bounds(), folder, ABOUT), ABOUT)


def test_equal_prompts_are_asked_once_and_none_twice(tmp_path: Path) -> None:
    engine = Reader()
    results = run_cases(engine, CASES, Bounds(), tmp_path, ABOUT)
    assert len(results) == len(CASES) * len(ARMS)
    assert len(engine.asked) == len({(r.case.number, r.prompt) for r in results}) < len(results)
    again = Reader()
    assert run_cases(again, CASES, Bounds(), tmp_path, ABOUT) == results
    assert not again.asked


def test_a_run_that_failed_goes_on(tmp_path: Path) -> None:
    whole = run_cases(Reader(), CASES, Bounds(), tmp_path / "whole", ABOUT)
    with pytest.raises(EngineError):
        run_cases(Reader(left=15), CASES, Bounds(), tmp_path / "cut", ABOUT)
    kept = tmp_path / "cut" / ANSWERS
    kept.write_bytes(kept.read_bytes()[:-20])
    rest = Reader()
    assert run_cases(rest, CASES, Bounds(), tmp_path / "cut", ABOUT) == whole
    assert kept.read_text() == (tmp_path / "whole" / ANSWERS).read_text()


def test_answers_of_something_else_are_refused(tmp_path: Path) -> None:
    run_cases(Reader(), CASES[:1], Bounds(), tmp_path, ABOUT)
    with pytest.raises(ConfigError, match="is of another quality"):
        run_cases(Reader(), CASES[:1], Bounds(answer=8), tmp_path, ABOUT)


def test_late_runs_leave_whole_cases(tmp_path: Path) -> None:
    engine = Reader()
    results = run_cases(engine, CASES, Bounds(), tmp_path, ABOUT, is_late=lambda: len(engine.asked) > 5)
    assert 0 < len(results) < len(CASES) * len(ARMS)
    assert len(results) % len(ARMS) == 0
    assert len(run_cases(Reader(left=0), CASES, Bounds(), tmp_path, ABOUT, is_late=lambda: True)) == len(results)


def test_a_loss_beyond_the_interval_is_named(tmp_path: Path) -> None:
    worse = found(Reader(with_annotation=-3.0), tmp_path / "worse")
    of = {(entry.arm, entry.base): entry for entry in worse.differences}
    assert set(of) == {
        ("order", "arrival"),
        ("annotated", "arrival"),
        ("annotated", "order"),
        ("deduped", "arrival"),
        ("deduped", "annotated"),
    }
    loss = of["annotated", "arrival"]
    assert loss.losses == ("log_likelihood",)
    assert loss.log_likelihood.low <= loss.log_likelihood.value <= loss.log_likelihood.high < 0
    assert loss.f1.low > 0
    assert of["order", "arrival"].losses == ()
    assert of["deduped", "annotated"].differing == 0
    assert of["deduped", "annotated"].log_likelihood.value == 0
    told = markdown(worse)
    assert "| annotated - order | 4" in told
    assert told.rstrip().endswith("| none |")
    better = found(Reader(with_annotation=-0.5), tmp_path / "better")
    assert not any(entry.losses for entry in better.differences)


def test_scores_of_the_arms(tmp_path: Path) -> None:
    arms = {arm.arm: arm for arm in found(Reader(), tmp_path).arms}
    assert arms["arrival"].changed == 0
    assert arms["arrival"].same_answer == 1
    assert arms["arrival"].evidence == 1
    annotated = arms["annotated"]
    assert 0 < annotated.exact_match == pytest.approx(1 - annotated.same_answer)


def test_too_few_cases_say_nothing(tmp_path: Path) -> None:
    few = report(run_cases(Reader(-3.0), CASES[-4:], Bounds(), tmp_path, ABOUT), ABOUT)
    assert not any(entry.losses for entry in few.differences)
    assert "too few cases" in markdown(few)
