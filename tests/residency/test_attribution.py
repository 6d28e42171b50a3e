"""The truth table of causes."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from prefixpilot.residency.attribution import Cause, Evidence, attribute, of_prediction

TABLE: list[tuple[dict[str, Any], Cause]] = [
    ({"reported": 640}, Cause.NONE),
    ({"reported": 640, "same_selection": False, "expired": True}, Cause.NONE),
    ({"reported": 704}, Cause.MORE_THAN_KNOWN),
    ({"reported": 704, "removed_at": 640, "same_place": False}, Cause.MORE_THAN_KNOWN),
    ({"reported": 704, "told_later": True}, Cause.EVENTS_LATE),
    ({"reported": 650, "told_later": True}, Cause.EVENTS_LATE),
    ({"reported": 704, "told_otherwise": True}, Cause.PICTURE_WRONG),
    ({"reported": 704, "told_later": False, "told_otherwise": False}, Cause.MORE_THAN_KNOWN),
    ({"reported": 704, "same_tokens": False}, Cause.TEMPLATE),
    ({"reported": 704, "prompt_tokens": 700, "counted_tokens": 701, "told_later": True}, Cause.TEMPLATE),
    ({"reported": 704, "prompt_tokens": 700, "counted_tokens": 700}, Cause.MORE_THAN_KNOWN),
    ({"reported": 320, "told_later": True}, Cause.EVENTS_LATE),
    ({"reported": 320, "told_later": True, "same_place": False}, Cause.ROUTED_ELSEWHERE),
    ({"reported": 320, "told_later": True, "removed_at": 320}, Cause.EVICTED),
    ({"reported": 320, "told_otherwise": True}, Cause.PICTURE_WRONG),
    ({"reported": 320, "told_otherwise": True, "same_tokens": False}, Cause.TEMPLATE),
    ({"reported": 650}, Cause.BELOW_PAGE_SIZE),
    ({"reported": 0, "same_selection": False}, Cause.SALT_OR_ADAPTER),
    ({"reported": 0, "same_selection": False, "same_place": False}, Cause.SALT_OR_ADAPTER),
    ({"reported": 0, "same_place": False}, Cause.ROUTED_ELSEWHERE),
    ({"reported": 0, "same_place": False, "expired": True}, Cause.ROUTED_ELSEWHERE),
    ({"reported": 0, "expired": True}, Cause.TTL),
    ({"reported": 0, "restarted": True, "told_later": True, "removed_at": 0}, Cause.RESTARTED),
    ({"reported": 0, "restarted": True, "same_place": False}, Cause.ROUTED_ELSEWHERE),
    ({"reported": 704, "restarted": True}, Cause.MORE_THAN_KNOWN),
    ({"reported": 320, "removed_at": 320}, Cause.EVICTED),
    ({"reported": 320, "removed_at": 336}, Cause.UNKNOWN),
    ({"reported": 320, "removed_at": 304}, Cause.UNKNOWN),
    ({"reported": 320, "volatile_at": 330}, Cause.VOLATILE_TEXT),
    ({"reported": 320, "volatile_at": 320, "removed_at": 320}, Cause.EVICTED),
    ({"reported": 320, "volatile_at": 336}, Cause.UNKNOWN),
    ({"reported": 320, "same_tokens": False}, Cause.TEMPLATE),
    ({"reported": 320, "prompt_tokens": 700, "counted_tokens": 701}, Cause.TEMPLATE),
    ({"reported": 320, "prompt_tokens": 700, "counted_tokens": 700}, Cause.UNKNOWN),
    ({"reported": 320, "prompt_tokens": 700}, Cause.UNKNOWN),
    ({"reported": 630, "same_tokens": True}, Cause.BELOW_PAGE_SIZE),
    ({"reported": 624}, Cause.UNKNOWN),
    ({"reported": 0, "same_selection": True, "same_place": True, "expired": False}, Cause.UNKNOWN),
]


@pytest.mark.parametrize(("known", "cause"), TABLE)
def test_truth_table(known: dict[str, Any], cause: Cause) -> None:
    assert attribute(Evidence(predicted=640, page_size=16, **known)) is cause


def test_all_causes_are_in_the_table() -> None:
    assert {cause for _, cause in TABLE} == set(Cause)


def test_what_is_not_known_is_no_cause() -> None:
    """With nothing but the numbers known, no cause is named that needs more."""
    for predicted, reported, page in product((0, 16, 100), (0, 16, 100), (1, 16)):
        cause = attribute(Evidence(predicted, reported, page))
        assert cause in {Cause.NONE, Cause.BELOW_PAGE_SIZE, Cause.MORE_THAN_KNOWN, Cause.UNKNOWN}
        assert (cause is Cause.NONE) == (predicted == reported)


@pytest.mark.parametrize(
    ("known", "predicted", "cause"),
    [
        ({}, 640, Cause.NONE),
        ({}, 0, Cause.MORE_THAN_KNOWN),
        ({"same_tokens": False}, 0, Cause.TEMPLATE),
        ({"told_later": True}, 0, Cause.EVENTS_LATE),
        ({"told_otherwise": True}, 960, Cause.PICTURE_WRONG),
        ({}, 636, Cause.BELOW_PAGE_SIZE),
        ({"removed_at": 320}, 0, Cause.MORE_THAN_KNOWN),
    ],
)
def test_just_what_was_planned_for_and_another_prediction(known: dict[str, Any], predicted: int, cause: Cause) -> None:
    assert of_prediction(Evidence(640, 640, 16, **known), predicted) is cause


def test_a_prediction_that_did_not_come_true_always_has_a_cause() -> None:
    for counted_on, predicted, reported in product((0, 16, 64, 100), repeat=3):
        cause = of_prediction(Evidence(counted_on, reported, 16), predicted)
        assert cause is not Cause.NONE or predicted == reported
