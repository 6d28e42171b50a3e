"""EXACT, DEGRADED, UNKNOWN: what the sources say decides, and nothing is claimed before anything has come."""

from __future__ import annotations

import pytest

from prefixpilot.cache_events import EventBatch, PageHash, PagesStored
from prefixpilot.engines.base import Continuity, SourceStatus
from prefixpilot.proxy.cache.knowledge import Knowledge
from prefixpilot.proxy.cache.watch import Rank
from prefixpilot.residency.pages import PageTable
from prefixpilot.residency.state import AGREEMENTS

ONE, TWO = Rank("tcp://one", 0), Rank("tcp://one", 1)
WHOLE, ASKING, BROKEN = Continuity.WHOLE, Continuity.CATCHING_UP, Continuity.BROKEN


def said(continuity: Continuity, rank: Rank = ONE) -> SourceStatus:
    return SourceStatus(rank.source, rank.rank, continuity, -1, 0, 0, 0, 0, 0, 0, 0, "")


def after(*steps: Continuity | None) -> str:
    """The state after what a source said; ``None``: a batch came."""
    knowledge = Knowledge()
    for step in steps:
        if step is None:
            knowledge.began(ONE)
        else:
            knowledge.note(said(step))
    return knowledge.state.name


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        ((), "UNKNOWN"),
        ((ASKING,), "UNKNOWN"),  # the engine may not even be there
        ((BROKEN,), "UNKNOWN"),
        ((ASKING, WHOLE), "EXACT"),  # it holds nothing yet, and says so
        ((None,), "EXACT"),
        ((ASKING, None), "DEGRADED"),  # a replay begins
        ((ASKING, None, WHOLE), "EXACT"),
        ((BROKEN, None), "DEGRADED"),
        ((BROKEN, None, WHOLE), "EXACT"),  # cleared, or begun anew
        ((None, ASKING), "DEGRADED"),
        ((None, ASKING, WHOLE), "EXACT"),
        ((None, ASKING, BROKEN), "DEGRADED"),
        ((None, ASKING, BROKEN, None), "DEGRADED"),
        ((None, BROKEN, ASKING), "DEGRADED"),
        ((None, BROKEN, WHOLE), "EXACT"),
    ],
)
def test_what_a_source_says(steps: tuple[Continuity | None, ...], state: str) -> None:
    assert after(*steps) == state


def test_the_worst_rank_counts() -> None:
    knowledge = Knowledge()
    knowledge.began(ONE)
    assert knowledge.state.name == "EXACT"
    knowledge.note(said(ASKING, TWO))
    assert knowledge.state.name == "DEGRADED"  # what the other holds is not known
    assert knowledge.why() == "1 of 2 ranks heard"
    knowledge.note(said(WHOLE, TWO))
    assert (knowledge.state.name, knowledge.why()) == ("EXACT", "")
    knowledge.note(said(BROKEN, TWO))
    assert knowledge.state.name == "DEGRADED"


def test_a_hole_is_mended_by_what_comes_true() -> None:
    knowledge, table = Knowledge(), PageTable()
    knowledge.began(ONE)
    knowledge.note(said(BROKEN))
    for _ in range(AGREEMENTS - 1):
        knowledge.reported(ONE, table, as_predicted=True)
    assert knowledge.state.name == "DEGRADED"
    knowledge.reported(ONE, table, as_predicted=True)
    assert knowledge.state.name == "EXACT"
    knowledge.reported(TWO, table, as_predicted=False)  # nobody knows it: nothing changes
    assert knowledge.state.name == "EXACT"


def test_of_ranks_of_which_none_is_heard_nothing_is_known() -> None:
    knowledge = Knowledge()
    for rank in (ONE, TWO):
        knowledge.note(said(BROKEN, rank))
    assert (knowledge.state.name, knowledge.why()) == ("UNKNOWN", "")


@pytest.mark.parametrize("settled_by", ["a hit on what was in doubt", "an emptied cache", "nothing in doubt any more"])
def test_a_count_of_nothing_where_pages_are_held_is_settled_by_what_comes_true(settled_by: str) -> None:
    knowledge, table = Knowledge(), PageTable()
    table.apply(EventBatch("tcp://one", 0, 0, (PagesStored((PageHash(b"A"),), None, (1,), 1),)))
    knowledge.began(ONE)
    knowledge.contradict(TWO)  # nobody knows it
    assert (knowledge.state.name, knowledge.contradicted) == ("EXACT", False)
    table.doubt()
    knowledge.contradict(ONE)
    knowledge.reported(ONE, table, as_predicted=True)
    assert knowledge.state.name == "DEGRADED" and "begun anew" in knowledge.why()
    if settled_by == "an emptied cache":
        knowledge.emptied(ONE)
    elif settled_by == "nothing in doubt any more":
        table.clear()
        knowledge.reported(ONE, table, as_predicted=False)
    else:
        knowledge.reported(ONE, table, as_predicted=True, proved=True)
    assert (knowledge.state.name, knowledge.why()) == ("EXACT", "")


@pytest.mark.parametrize("settled_by", ["an emptied cache", "reports that agree", "a hole of its own that is mended"])
def test_pages_of_before_that_are_reused_are_as_a_hole(settled_by: str) -> None:
    knowledge, table = Knowledge(), PageTable()
    knowledge.began(ONE)
    knowledge.kept(ONE)
    knowledge.kept(ONE)
    assert knowledge.state.name == "DEGRADED" and "began anew, and yet it reuses pages of before" in knowledge.why()
    knowledge.note(said(ASKING))
    knowledge.note(said(WHOLE))
    assert knowledge.state.name == "DEGRADED"
    if settled_by == "an emptied cache":
        knowledge.emptied(ONE)
    elif settled_by == "reports that agree":
        for _ in range(AGREEMENTS):
            assert knowledge.state.name == "DEGRADED"
            knowledge.reported(ONE, table, as_predicted=True)
    else:
        knowledge.note(said(BROKEN))
        knowledge.note(said(WHOLE))
    assert (knowledge.state.name, knowledge.why()) == ("EXACT", "")
    knowledge.kept(ONE)
    assert knowledge.state.name == "DEGRADED" and knowledge.why()


def test_an_emptied_cache_does_not_make_whole_what_its_source_does_not_say_is() -> None:
    for continuity in (ASKING, BROKEN):
        knowledge = Knowledge()
        knowledge.began(ONE)
        knowledge.kept(ONE)
        knowledge.note(said(continuity))
        knowledge.emptied(ONE)
        assert (knowledge.state.name, knowledge.why()) == ("DEGRADED", "")


def test_what_is_forgotten_is_unknown() -> None:
    knowledge = Knowledge()
    knowledge.began(ONE)
    knowledge.kept(ONE)
    knowledge.contradict(ONE)
    knowledge.note(said(BROKEN))
    knowledge.forget()
    assert (knowledge.state.name, knowledge.why(), knowledge.contradicted) == ("UNKNOWN", "", False)
    knowledge.began(ONE)
    assert knowledge.state.name == "EXACT"
