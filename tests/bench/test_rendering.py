"""Replays of whole prompts: head, labels, annotations, question. Every number can be counted by hand."""

from __future__ import annotations

import pytest

from prefixpilot.annotations import estimate_annotation_tokens
from prefixpilot.bench import Rendering, simulate
from prefixpilot.errors import ConfigError
from prefixpilot.prefix_cache import PagedPrefixCache, RadixPrefixCache

from .test_replaying import SHUFFLED, run, workload

WHOLE = Rendering(head_tokens=50, question_tokens=20, label_tokens=7)
TURN = 3 * (7 + 100) + 20
"""Tokens of a request of three blocks behind its head, without annotation."""


def test_arrival_shares_the_head_and_the_first_label() -> None:
    report = run(SHUFFLED, "arrival", rendering=WHOLE)
    assert report.result.total_tokens == 3 * (50 + TURN)
    assert report.result.cached_tokens == 2 * (50 + 7)
    assert report.hit_rate_behind_head == 2 * 7 / (3 * TURN)


def test_online_shares_labels_and_blocks_too() -> None:
    report = run(SHUFFLED, "online", rendering=WHOLE)
    annotations = report.result.total_tokens - 3 * (50 + TURN)
    order = (
        "Please read the context in the following priority order: [Doc 2] > [Doc 1] > [Doc 3] and answer the question."
    )
    assert annotations == estimate_annotation_tokens(order)
    # the second request: head and first label; the last one: head, two blocks behind their labels, the third label
    assert report.result.cached_tokens == (50 + 7) + 50 + 2 * (7 + 100) + 7
    behind = report.result.total_tokens - 3 * 50
    assert report.hit_rate_behind_head == pytest.approx((7 + 2 * 107 + 7) / behind)


def test_questions_are_never_shared() -> None:
    report = run(workload([1], [1]), "arrival", rendering=WHOLE)
    assert report.result.cached_tokens == 50 + 107


def test_pages_count_from_the_head_on() -> None:
    report = simulate(workload([1], [1]), "arrival", PagedPrefixCache(None, 64), rendering=WHOLE)
    assert report.result.cached_tokens == (50 + 107) // 64 * 64
    assert report.hit_rate_behind_head == pytest.approx((128 - 50) / (2 * 127))


def test_a_conversation_has_one_head() -> None:
    report = run(workload([1, 2], [3, 4], sessions="aa"), "arrival", rendering=WHOLE, multi_turn=True)
    turn = 2 * 107 + 20
    assert [access.total_tokens for access in report.result.accesses] == [50 + turn, 50 + 2 * turn]
    assert report.result.accesses[1].cached_tokens == 50 + turn


def test_without_a_rendering_all_is_as_it_was() -> None:
    report = run(SHUFFLED, "online")
    assert report.rendering is None
    assert report.hit_rate_behind_head == report.result.hit_rate


def test_an_empty_workload_has_no_rate() -> None:
    assert simulate(workload(), "arrival", RadixPrefixCache(None), rendering=WHOLE).hit_rate_behind_head == 0.0


@pytest.mark.parametrize("name", ["head_tokens", "question_tokens", "label_tokens"])
def test_lengths_are_not_negative(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Rendering(**{name: -1})
