"""Who has lost a page: the engine's side of the request-id protocol, against a slow model."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from prefixpilot.engines.held_pages import HeldPages


def test_a_request_is_evicted_with_the_first_page_that_it_loses_and_once() -> None:
    held = HeldPages()
    assert held.finished("a", [1, 2, 3]) == []
    assert held.taken([7, 3]) == ["a"]
    assert held.taken([1, 2]) == []
    assert len(held) == 0


def test_a_shared_page_takes_all_who_share_it() -> None:
    held = HeldPages()
    held.finished("a", [1, 2])
    held.finished("b", [1, 3])
    assert held.taken([3]) == ["b"]
    assert held.taken([1]) == ["a"]


def test_a_request_without_a_full_page_is_not_remembered() -> None:
    held = HeldPages()
    assert held.finished("a", []) == []
    assert (len(held), held.cleared()) == (0, [])


def test_the_oldest_is_forgotten_and_told_when_there_are_too_many() -> None:
    held = HeldPages(most_requests=2)
    held.finished("a", [1])
    held.finished("b", [2])
    assert held.finished("c", [3]) == ["a"]
    assert held.taken([1]) == []


def test_clearing_tells_all() -> None:
    held = HeldPages()
    held.finished("a", [1])
    held.finished("b", [1, 2])
    assert held.cleared() == ["a", "b"]
    assert held.taken([1, 2]) == []


pages = st.lists(st.integers(0, 9), max_size=5, unique=True)


class HeldAndModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.held = HeldPages(most_requests=4)
        self.model: dict[str, list[int]] = {}

    @rule(name=st.sampled_from("abcdefg"), pages=pages)
    def finished(self, name: str, pages: list[int]) -> None:
        told = self.held.finished(name, pages)
        if pages:
            self.model.pop(name, None)
            self.model[name] = pages
        oldest = [next(iter(self.model))] if len(self.model) > 4 else []
        assert told == oldest
        for each in oldest:
            del self.model[each]

    @rule(pages=pages)
    def taken(self, pages: list[int]) -> None:
        expected = {name for name, held in self.model.items() if set(held) & set(pages)}
        told = self.held.taken(pages)
        assert len(told) == len(set(told))
        assert set(told) == expected
        for name in told:
            del self.model[name]

    @rule()
    def cleared(self) -> None:
        assert self.held.cleared() == list(self.model)
        self.model.clear()

    @invariant()
    def is_whole(self) -> None:
        self.held.check_invariants()
        assert len(self.held) == len(self.model)


TestHeldAndModel = HeldAndModel.TestCase
TestHeldAndModel.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
