"""Policies for the tail, one behaviour a test, and what holds for all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.properties.strategies import block_ids, contexts

from prefixpilot.core import BlockId
from prefixpilot.tails import POLICIES, Tail, Window
from prefixpilot.tails.policies import co_occurrence


def window_of(*sent: list[BlockId], size: int = 64) -> Window:
    window = Window(size)
    for context in sent:
        window.add(context)
    return window


def same(context: list[BlockId], times: int) -> list[list[BlockId]]:
    return [context] * times


def tail(rest: list[BlockId], *prefix: BlockId, tokens: list[int] | None = None, live: int = 64) -> Tail:
    return Tail(prefix, rest, tokens or [1] * len(rest), live)


tails = st.builds(
    lambda blocks, cut, tokens: Tail(tuple(blocks[:cut]), blocks[cut:], tokens[cut : len(blocks)], 8),
    contexts,
    st.integers(0, 6),
    st.lists(st.integers(0, 100), min_size=6, max_size=6),
)


@pytest.mark.parametrize("name", POLICIES)
@given(sent=st.lists(contexts, max_size=12), asked=tails)
def test_a_policy_gives_distinct_blocks_of_the_rest_and_changes_nothing(
    name: str, sent: list[list[BlockId]], asked: Tail
) -> None:
    window = window_of(*sent, size=8)
    lead = POLICIES[name](window, asked)
    assert len(set(lead)) == len(lead) and set(lead) <= set(asked.rest)
    assert POLICIES[name](window, asked) == lead
    window.check_invariants()


@pytest.mark.parametrize("name", ["relevance", "popularity", "mix", "chain", "co-occurrence"])
@given(sent=st.lists(st.lists(st.integers(0, 2), max_size=5), min_size=1, max_size=30))
def test_ids_that_stand_for_all_before_them_keep_their_order(name: str, sent: list[list[int]]) -> None:
    """A prefix trace: block i names the whole prompt up to it, and lengths differ."""
    as_ids: list[list[BlockId]] = [["".join(map(str, c[: i + 1])) for i in range(len(c))] for c in sent]
    window = window_of(*as_ids)
    for context in as_ids:
        for cut in range(len(context)):
            rest = context[cut:]
            asked = Tail(tuple(context[:cut]), rest, [len(str(b)) % 3 * 50 + 1 for b in rest], 64)
            lead = POLICIES[name](window, asked)
            assert lead == rest[: len(lead)]


def test_relevance_moves_nothing() -> None:
    assert POLICIES["relevance"](window_of([2], [2]), tail([1, 2])) == []


def test_popularity_counts_recent_contexts() -> None:
    window = window_of([1], [1], [2, 3], [2, 3], [3], size=4)
    assert POLICIES["popularity"](window, tail([1, 3, 2])) == [3, 2, 1]


def test_popularity_may_be_weighed_by_tokens() -> None:
    assert POLICIES["popularity-tokens"](window_of([1], [1], [2]), tail([1, 2], tokens=[10, 30])) == [2, 1]


def test_the_mix_moves_a_block_up_by_twice_the_logarithm_of_its_count() -> None:
    window = window_of([3], [3])
    assert POLICIES["mix"](window, tail([1, 2, 3, 4])) == [3, 1, 2, 4]


def test_the_chain_follows_the_block_just_placed() -> None:
    window = window_of([1, 2], [2, 3], [3, 4], [9], [9], [9])
    assert POLICIES["chain"](window, tail([9, 4, 3, 2], 1)) == [2, 3, 4, 9]


def test_co_occurrence_asks_for_the_whole_path() -> None:
    """4 is most often with 2, but never with 1 and 2."""
    window = window_of([1, 2, 3], [1, 2, 3], [2, 4], [2, 4], [2, 4])
    assert co_occurrence(window, tail([4, 3], 1, 2)) == [3]


def test_one_context_does_not_speak_for_a_block() -> None:
    assert co_occurrence(window_of([1, 2]), tail([3, 2], 1)) == []


def test_five_contexts_speak_for_a_first_block() -> None:
    assert co_occurrence(window_of(*same([1], 4)), tail([2, 1])) == []
    assert co_occurrence(window_of(*same([1], 5)), tail([2, 1])) == [1]


def test_what_a_small_cache_forgets_before_its_next_use_does_not_lead() -> None:
    others: list[list[BlockId]] = [[n] for n in range(10, 55)]
    window = window_of(*same([1], 5), *others)
    assert co_occurrence(window, tail([2, 1], live=50)) == [1]
    assert co_occurrence(window, tail([2, 1], live=1)) == []


def test_tokens_weigh() -> None:
    window = window_of(*same([1], 6), *same([2], 5))
    assert co_occurrence(window, tail([1, 2])) == [1]
    assert co_occurrence(window, tail([1, 2], tokens=[10, 100])) == [2]


def test_a_block_goes_before_those_that_never_come_without_it() -> None:
    window = window_of(*same([1, 2], 5))
    assert co_occurrence(window, tail([1, 2], tokens=[10, 100])) == [1, 2]


def test_picks_are_bounded() -> None:
    blocks: list[BlockId] = list(range(200))
    assert co_occurrence(window_of(*same(blocks, 5)), tail(blocks)) == blocks[:64]


@given(sent=st.lists(contexts, max_size=12), block=block_ids)
def test_an_unknown_block_never_leads(sent: list[list[BlockId]], block: BlockId) -> None:
    assert "unknown" not in co_occurrence(window_of(*sent), tail(["unknown", block]))
