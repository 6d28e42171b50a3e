"""The parts of an analysis: histories, fronts, curves, errors across processes."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from prefixpilot.apis import CHAT
from prefixpilot.apis.base import Prompt
from prefixpilot.bench.analysis.arms import POINTS, Arm
from prefixpilot.bench.analysis.fronts import Findings
from prefixpilot.bench.analysis.histories import Histories, Place
from prefixpilot.bench.analysis.report import percentile
from prefixpilot.bench.analysis.tokens import PAGE_CHARS, segments, text_tokens
from prefixpilot.errors import InvalidInputError, MissingExtraError, TraceError
from prefixpilot.proxy.cache.fronts import KEPT, front_of

from .conftest import chat


def prompt(*messages: str, **more: Any) -> Prompt:
    read = CHAT.read(chat(*messages, **more))
    assert read is not None
    return read


def test_a_history_is_followed_whatever_the_system_text_says() -> None:
    histories = Histories()
    assert histories.place(0, prompt("a")) == Place(0, None)
    assert histories.place(1, prompt("b")) == Place(1, None)
    assert histories.place(2, prompt("a", "x", "c", system="Another.")) == Place(0, 0)
    assert histories.place(3, prompt("a", "x", "c", "y", "d")) == Place(0, 2)
    assert histories.place(4, prompt("a", "other", "c")) == Place(0, 0)
    assert histories.place(5, prompt("edited", "x", "c")) == Place(5, None)


def test_histories_are_bounded() -> None:
    histories = Histories(limit=2)
    for number, text in enumerate("abc"):
        histories.place(number, prompt(text))
    assert histories.place(3, prompt("a", "x", "y")) == Place(3, None)
    assert histories.place(4, prompt("c", "x", "y")) == Place(2, 2)


def system(*changed: str) -> str:
    return "\n".join([*changed, *(f"Rule {i} of the house." for i in range(8))])


def test_fronts_that_come_again_are_no_change() -> None:
    findings = Findings()
    for line in range(6):
        findings.add(
            line, "m", front_of(prompt(f"q{line}", system=system("Be kind." if line % 2 else "Be brief.")), ())
        )
    (found,) = findings.ranked()
    assert (found.cause, found.requests) == ("text", 1)


def test_only_recent_fronts_are_compared() -> None:
    findings = Findings()
    for line in range(KEPT + 3):
        findings.add(
            line, "m", front_of(prompt("q", system=system(f"Session ID: {line:08x}-aaaa-bbbb-cccc-{line:012x}")), ())
        )
    findings.add(99, "m", front_of(prompt("q", system=system("Session ID: 00000000-aaaa-bbbb-cccc-000000000000")), ()))
    (found,) = findings.ranked()
    assert (found.cause, found.requests) == ("ids", KEPT + 3)


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("Today is 2026-11-30 10:{:02d}:00. You are helpful. " + "Keep to the long rules. " * 20, "clock"),
        ("The user is called User{:02d}. You are helpful. " + "Keep to the long rules. " * 20, "text"),
    ],
)
def test_a_change_in_a_text_of_one_line_is_found(words: str, cause: str) -> None:
    findings = Findings()
    for line in range(12):
        findings.add(line, "m", front_of(prompt("q", system=words.format(line)), ()))
    (found,) = findings.ranked()
    assert (found.cause, found.requests) == (cause, 11)
    assert found.lost_tokens > 11 * 100


def test_less_than_a_page_is_no_hit() -> None:
    arm = Arm("arrival", None)
    for _ in range(3):
        arm.take(prompt("hi"))
    assert arm.result().cached_tokens == 0
    for _ in range(3):
        arm.take(prompt("word " * 300))
    assert arm.result().cached_tokens % (PAGE_CHARS // 4) == 0
    assert 2 * 330 < arm.result().cached_tokens < 2 * 390


def test_segments_are_equal_exactly_as_far_as_the_text_is() -> None:
    text = "word " * 200
    one, other = segments(prompt(text)), segments(prompt(text[:700] + "X" + text[701:]))
    equal = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    head = len(segments(prompt(""))) - 1
    assert equal == head + 1 + 700 // PAGE_CHARS
    assert text_tokens(text) == 250
    assert text_tokens("é" * 256) == 128
    assert text_tokens("") == 0


def test_a_curve_has_no_more_points_than_a_page_can_show() -> None:
    arm = Arm("arrival", 1_000)
    for number in range(1_000):
        arm.take(prompt(str(number)))
    curve = arm.result().curve
    assert POINTS <= len(curve) <= 2 * POINTS
    assert curve[-1].requests == 1_000
    assert [point.requests for point in curve] == sorted({point.requests for point in curve})
    assert curve[-1].cached == arm.result().cached_tokens


def test_an_arm_without_requests_has_figures_all_the_same() -> None:
    result = Arm("arrival", None).result()
    assert (result.hit_rate, result.median_prefilled, result.billed_tokens) == (0.0, 0, None)


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 3), (0.95, 5), (1.0, 5)])
def test_percentiles_are_values_that_were_seen(share: float, value: int) -> None:
    assert percentile([5, 1, 4, 2, 3], share) == value


@pytest.mark.parametrize("error", [TraceError("f:1: x", "is 0", "use 1"), MissingExtraError("zmq", "pip install x")])
def test_errors_come_back_whole_from_another_process(error: InvalidInputError | MissingExtraError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
