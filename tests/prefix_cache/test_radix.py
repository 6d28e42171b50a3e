"""The radix model of the engine's cache, by hand."""

from __future__ import annotations

import pytest

from prefixpilot.errors import ConfigError, InvalidInputError, InvariantError
from prefixpilot.prefix_cache import FIFO, LFU, LRU, Access, EvictionPolicy, RadixPrefixCache, Segment


def prompt(*keys: str, tokens: int = 10) -> list[Segment]:
    return [Segment(key, tokens) for key in keys]


def test_an_identical_prompt_hits_whole() -> None:
    cache = RadixPrefixCache(None)
    assert cache.access(prompt("a", "b")) == Access(0, 20, 0)
    assert cache.access(prompt("a", "b")) == Access(20, 20, 0)


def test_only_the_shared_prefix_hits() -> None:
    cache = RadixPrefixCache(None)
    cache.access(prompt("a", "b", "c"))
    assert cache.access(prompt("a", "b", "d")).cached_tokens == 20
    assert cache.access(prompt("b", "a", "c")).cached_tokens == 0
    assert cache.access(prompt("a", "b", "c", "e")).cached_tokens == 30


def test_matching_changes_nothing() -> None:
    cache = RadixPrefixCache(20)
    cache.access(prompt("a"))
    cache.access(prompt("b"))
    assert cache.match_prefix(prompt("a", "b")) == 10
    cache.access(prompt("c"))  # "a" is still the least recently used
    assert cache.match_prefix(prompt("a")) == 0
    assert cache.match_prefix(prompt("b")) == 10


def test_equal_keys_of_other_length_are_other_tokens() -> None:
    cache = RadixPrefixCache(None)
    cache.access([Segment("a", 10)])
    assert cache.match_prefix([Segment("a", 9)]) == 0


def test_a_segment_without_tokens_is_not_there() -> None:
    cache = RadixPrefixCache(None)
    cache.access([Segment("a", 10), Segment("nothing", 0), Segment("b", 10)])
    assert cache.match_prefix(prompt("a", "b")) == 20


def test_the_budget_is_exact_to_the_token() -> None:
    cache = RadixPrefixCache(25)
    cache.access(prompt("a", "b"))
    assert cache.access(prompt("c")) == Access(0, 10, 5)
    assert cache.used_tokens == 25
    assert cache.match_prefix(prompt("a", "b")) == 15


def test_a_tail_that_was_cut_is_completed() -> None:
    cache = RadixPrefixCache(25)
    cache.access(prompt("a", "b"))
    cache.access(prompt("c"))
    assert cache.access(prompt("a", "b")) == Access(15, 20, 5)
    assert cache.match_prefix(prompt("a", "b")) == 20
    assert cache.match_prefix(prompt("c")) == 5


def test_a_prompt_longer_than_the_cache_leaves_its_head() -> None:
    cache = RadixPrefixCache(25)
    cache.access(prompt("x"))
    assert cache.access(prompt("a", "b", "c")) == Access(0, 30, 10)
    assert cache.match_prefix(prompt("a", "b", "c")) == 25
    assert cache.access(prompt("a", "b", "c")) == Access(25, 30, 0)


@pytest.mark.parametrize("policy", [LRU, LFU, FIFO])
def test_what_a_prompt_hits_is_not_evicted_for_it(policy: EvictionPolicy) -> None:
    cache = RadixPrefixCache(30, policy)
    cache.access(prompt("a"))
    cache.access(prompt("b"))
    cache.access(prompt("b"))
    assert cache.access(prompt("a", "c", "d", "e")) == Access(10, 40, 10)
    assert cache.match_prefix(prompt("a", "c", "d", "e")) == 30
    cache.check_invariants()


def test_what_was_spared_once_can_be_evicted_later() -> None:
    cache = RadixPrefixCache(20, FIFO)
    cache.access(prompt("a"))
    cache.access(prompt("a", "b", "c"))
    cache.access(prompt("x", "y"))
    assert cache.match_prefix(prompt("a")) == 0


@pytest.mark.parametrize(
    ("policy", "victim"),
    [(LRU, "b"), (LFU, "c"), (FIFO, "a")],
)
def test_policies_choose_different_victims(policy: EvictionPolicy, victim: str) -> None:
    cache = RadixPrefixCache(30, policy)
    for key in ("a", "b", "b", "c", "a"):  # inserted a, b, c; last used b, c, a; least used c
        cache.access(prompt(key))
    cache.access(prompt("d"))
    assert [k for k in "abc" if not cache.match_prefix(prompt(k))] == [victim]


def test_clear_holds_nothing() -> None:
    cache = RadixPrefixCache(30)
    cache.access(prompt("a"))
    cache.clear()
    assert (cache.used_tokens, cache.match_prefix(prompt("a"))) == (0, 0)
    cache.check_invariants()


def test_negative_lengths_are_refused_and_change_nothing() -> None:
    cache = RadixPrefixCache(30)
    with pytest.raises(InvalidInputError, match=r"prompt\[1\].tokens: is -1"):
        cache.access([Segment("a", 1), Segment("b", -1)])
    assert cache.used_tokens == 0


def test_a_capacity_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="capacity_tokens: is 0"):
        RadixPrefixCache(0)


def test_a_broken_structure_is_noticed() -> None:
    cache = RadixPrefixCache(30)
    cache.access(prompt("a", "b"))
    cache._used += 1
    with pytest.raises(InvariantError, match="count of held tokens"):
        cache.check_invariants()
