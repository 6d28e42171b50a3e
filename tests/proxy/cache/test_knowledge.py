"""EXACT, DEGRADED, UNKNOWN: what the sources say decides, and nothing is claimed before anything has come."""

from __future__ import annotations

import pytest

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
    assert knowledge.state.name == "UNKNOWN"
    knowledge.note(said(WHOLE, TWO))
    assert knowledge.state.name == "EXACT"
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
