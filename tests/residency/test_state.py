"""The states of a cache, story by story."""

from __future__ import annotations

import pytest

from prefixpilot.cache_events import EventBatch, PageHash, PagesStored
from prefixpilot.errors import ConfigError
from prefixpilot.residency.pages import PageTable
from prefixpilot.residency.state import CacheState, StateTracker, worst

EXACT, DEGRADED, UNKNOWN = CacheState.EXACT, CacheState.DEGRADED, CacheState.UNKNOWN


def tracker(began: int | None = 0) -> StateTracker:
    made = StateTracker(agreements=3)
    assert made.state is UNKNOWN
    if began is not None:
        made.began(began)
    return made


def test_followed_from_the_first_batch_it_is_exact() -> None:
    assert tracker(0).state is EXACT


def test_a_late_subscriber_has_a_hole_until_the_engine_holds_nothing() -> None:
    late = tracker(7)
    assert late.state is DEGRADED
    late.replayed()
    assert late.state is DEGRADED
    late.cleared()
    assert late.state is EXACT


def test_a_gap_that_is_replayed_is_no_hole() -> None:
    followed = tracker()
    followed.gap()
    assert followed.state is DEGRADED
    followed.began(9)
    followed.replayed()
    assert followed.state is EXACT
    followed.replayed()
    assert followed.state is EXACT


def test_what_is_lost_stays_lost_until_reports_prove_the_picture() -> None:
    followed, table = tracker(), PageTable()
    followed.lost()
    for as_predicted in (True, True, False, True, True):
        followed.reported(table, as_predicted=as_predicted)
        assert followed.state is DEGRADED
    followed.reported(table, as_predicted=True)
    assert followed.state is EXACT


def test_a_picture_with_doubtful_pages_is_not_proved() -> None:
    followed, table = tracker(), PageTable()
    table.apply(EventBatch("e", 0, 0, (PagesStored((PageHash(b"A"),), None, (1,), 1),)))
    table.doubt()
    followed.lost()
    for _ in range(4):
        followed.reported(table, as_predicted=True)
    assert followed.state is DEGRADED
    table.confirm((PageHash(b"A"),))
    for _ in range(3):
        followed.reported(table, as_predicted=True)
    assert followed.state is EXACT


def test_reports_prove_nothing_while_a_gap_is_being_replayed() -> None:
    followed = tracker()
    followed.gap()
    for _ in range(5):
        followed.reported(PageTable(), as_predicted=True)
    assert followed.state is DEGRADED


def test_without_events_it_is_unknown_again() -> None:
    followed = tracker()
    followed.lost()
    followed.ended()
    assert followed.state is UNKNOWN
    followed.began(0)
    assert followed.state is EXACT


def test_of_several_ranks_the_worst_counts() -> None:
    assert worst([]) is UNKNOWN
    assert worst([EXACT, EXACT]) is EXACT
    assert worst([EXACT, DEGRADED]) is DEGRADED
    assert worst([DEGRADED, UNKNOWN, EXACT]) is UNKNOWN


def test_agreements_are_1_or_more() -> None:
    with pytest.raises(ConfigError, match="agreements"):
        StateTracker(0)
