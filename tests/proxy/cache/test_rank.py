"""The ids under which an engine tells of an eviction, against those of the requests whose contexts are attached."""

from __future__ import annotations

import pytest

from prefixpilot.cache_events import EventBatch
from prefixpilot.core import RequestId
from prefixpilot.proxy.cache.rank import RankView

from .test_view import SIZE, TOKENS, names, removed, stored


def attached(*ids: str) -> RankView:
    """Each over two pages of its own and the first one of all."""
    rank = RankView(100)
    for number, name in enumerate(ids):
        tokens = [*TOKENS[:SIZE], *range(1000 + 10 * number, 1008 + 10 * number)]
        rank.apply(EventBatch("e", 0, number, (stored(tokens),)))
        assert rank.contexts is not None
        rank.contexts.attach(RequestId(name), names(tokens, "NoneNone"), [12])
    return rank


def usable(rank: RankView, *ids: str) -> list[int]:
    assert rank.contexts is not None
    return [rank.contexts.usable(RequestId(each)) for each in ids]


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("told", ["job_1", "0_job_1", "job_1-0123abcd"])
def test_an_id_that_is_gone_is_not_taken_for_a_shorter_one(told: str, times: int) -> None:
    """SGLang numbers the prompts of one request so; and a client may."""
    rank = attached("job", "job_1")
    for _ in range(times):
        rank.detach([told])
    assert usable(rank, "job", "job_1") == [1, 0]


def test_an_id_that_was_never_ours_is_what_the_engine_made_of_one() -> None:
    rank = attached("job")
    rank.detach(["job_1"])
    assert usable(rank, "job") == [0]


def test_one_that_went_with_its_pages_is_known_to_be_gone_too() -> None:
    rank = attached("job", "job_1")
    own = [*TOKENS[:SIZE], *range(1010, 1018)]
    rank.apply(EventBatch("e", 0, 2, (removed(own, 1),)))
    assert usable(rank, "job", "job_1") == [1, 0]
    rank.detach(["job_1"])
    assert usable(rank, "job") == [1]


def test_one_that_is_attached_again_can_be_evicted_again() -> None:
    rank = attached("job", "job_1")
    rank.detach(["job_1"])
    assert rank.contexts is not None
    rank.contexts.attach(RequestId("job_1"), names(TOKENS, "NoneNone"), [4])
    rank.detach(["job_1", "job_1"])
    assert usable(rank, "job", "job_1") == [1, 0]
