"""The pages of a prompt, by the last of them."""

from __future__ import annotations

from prefixpilot.cache_events import CacheEvent, EventBatch, PageHash, PagesRemoved, PagesStored
from prefixpilot.residency.pages import PageTable

A, B, C, X = (PageHash(name) for name in (b"a", b"b", b"c", b"x"))


def table(*events: CacheEvent) -> PageTable:
    made = PageTable()
    made.apply(EventBatch("e", 0, 0, events))
    return made


def test_a_chain_is_from_the_start() -> None:
    held = table(PagesStored((A, B), None, (1, 2), 1), PagesStored((C,), B, (3,), 1), PagesStored((X,), A, (9,), 1))
    assert held.chain(C) == (A, B, C)
    assert held.chain(X) == (A, X)
    assert held.chain(A) == (A,)


def test_a_chain_with_a_hole_is_none() -> None:
    held = table(PagesStored((A, B, C), None, (1, 2, 3), 1), PagesRemoved((B,)))
    assert held.chain(C) == ()
    assert held.chain(A) == (A,)
    assert held.chain(X) == ()
    assert table(PagesStored((C,), B, (3,), 1)).chain(C) == ()  # its parent was never told


def test_a_circle_that_nonsense_has_made_ends() -> None:
    held = table(PagesStored((A,), B, (1,), 1), PagesStored((B,), A, (2,), 1), PagesStored((X,), B, (3,), 1))
    assert (held.chain(A), held.chain(X)) == ((), ())
