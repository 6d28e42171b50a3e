"""Pages: only full ones are held, and a page is what it holds and everything before it."""

from __future__ import annotations

import pytest

from prefixpilot.errors import ConfigError
from prefixpilot.prefix_cache import Access, PagedPrefixCache, Segment


def tokens(text: str) -> list[Segment]:
    return [Segment(letter, 1) for letter in text]


def test_only_full_pages_hit() -> None:
    cache = PagedPrefixCache(None, 4)
    assert cache.access(tokens("abcdefghij")) == Access(0, 10, 0)
    assert cache.access(tokens("abcdefghij")) == Access(8, 10, 0)
    assert cache.match_prefix(tokens("abcdefgX")) == 4
    assert cache.match_prefix(tokens("abc")) == 0


def test_a_page_needs_its_prefix() -> None:
    cache = PagedPrefixCache(None, 4)
    cache.access(tokens("abcdefgh"))
    assert cache.match_prefix(tokens("efgh")) == 0
    assert cache.match_prefix(tokens("XXXXefgh")) == 0


def test_a_page_may_span_segments() -> None:
    cache = PagedPrefixCache(None, 16)
    cache.access([Segment("a", 20), Segment("b", 50)])
    assert cache.match_prefix([Segment("a", 20), Segment("b", 50)]) == 64
    assert cache.match_prefix([Segment("a", 20), Segment("c", 50)]) == 16


def test_eviction_goes_page_by_page_from_the_tail() -> None:
    cache = PagedPrefixCache(70, 16)  # four pages
    cache.access([Segment("a", 64)])
    assert cache.access([Segment("b", 20)]) == Access(0, 20, 16)
    assert cache.match_prefix([Segment("a", 64)]) == 48
    assert cache.used_tokens == 64
    cache.check_invariants()


def test_clear_holds_nothing() -> None:
    cache = PagedPrefixCache(None, 4)
    cache.access(tokens("abcd"))
    cache.clear()
    assert cache.used_tokens == 0


def test_it_says_its_sizes() -> None:
    cache = PagedPrefixCache(70, 16)
    assert (cache.capacity_tokens, cache.page_size) == (70, 16)


@pytest.mark.parametrize(("capacity", "page", "field"), [(8, 0, "page_size"), (8, 9, "capacity"), (0, 1, "capacity")])
def test_sizes_that_cannot_be_are_refused(capacity: int, page: int, field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        PagedPrefixCache(capacity, page)
