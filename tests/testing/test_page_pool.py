"""The pool of pages of a simulated engine: what it hits, what it evicts, what it tells; against a slow model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prefixpilot.cache_events import CacheCleared, PageHash, PagesRemoved, PagesStored
from prefixpilot.errors import ConfigError, InvalidInputError
from prefixpilot.testing.page_pool import Allocation, PagePool

A = list(range(100, 112))
B = list(range(200, 212))


def serve(pool: PagePool, tokens: Sequence[int], salt: str | None = None, answer: Sequence[int] = ()) -> int:
    """One request from start to end; returns what it hit."""
    allocation = pool.begin(tokens, salt)
    assert allocation is not None
    assert pool.extend(allocation, answer)
    pool.end(allocation)
    pool.check_invariants()
    return allocation.cached_tokens


def test_a_prompt_hits_whole_pages_and_never_its_last_token() -> None:
    pool = PagePool(8, 4)
    assert serve(pool, A) == 0
    assert serve(pool, A) == 8
    assert serve(pool, [*A, 1]) == 12
    assert serve(pool, A[:7]) == 4


def test_a_salt_keeps_prompts_apart_and_stands_on_the_first_page() -> None:
    pool = PagePool(8, 4)
    serve(pool, A)
    assert serve(pool, A, salt="tenant") == 0
    assert serve(pool, A, salt="tenant") == 8
    stored = [event for event in pool.take_events() if isinstance(event, PagesStored)]
    assert [event.extra_keys for event in stored[:2]] == [(), (("tenant",), None, None)]


def test_the_least_recently_freed_pages_go_first_from_the_tail() -> None:
    pool = PagePool(6, 4)
    serve(pool, A)
    serve(pool, B)
    pool.take_events()
    assert serve(pool, [7] * 8) == 0
    removed = [event for event in pool.take_events() if isinstance(event, PagesRemoved)]
    assert len(removed) == 2
    assert pool.match(A) == 4
    assert pool.match(B) == 8


def test_events_tell_pages_parents_and_tokens() -> None:
    pool = PagePool(8, 4)
    serve(pool, A[:8])
    serve(pool, [*A, 5])
    first, second = pool.take_events()
    assert isinstance(first, PagesStored)
    assert isinstance(second, PagesStored)
    assert (first.parent, first.token_ids, first.page_size) == (None, tuple(A[:8]), 4)
    assert (second.parent, second.token_ids) == (first.pages[-1], tuple(A[8:]))


def test_a_full_hit_computes_its_last_page_again_and_tells_it_again() -> None:
    pool = PagePool(8, 4)
    serve(pool, A)
    (first,) = pool.take_events()
    serve(pool, A)
    (again,) = pool.take_events()
    assert isinstance(first, PagesStored)
    assert isinstance(again, PagesStored)
    assert again.pages == first.pages[2:]
    assert pool.named_pages == 3


def test_an_answer_fills_pages_too() -> None:
    pool = PagePool(8, 4)
    serve(pool, A[:6], answer=[1, 2, 3])
    assert pool.match([*A[:6], 1, 2, 9]) == 8


def test_running_requests_keep_their_pages() -> None:
    pool = PagePool(4, 4)
    held = pool.begin(A)
    assert held is not None
    assert pool.begin(B) is None
    assert not pool.extend(held, [1] * 5)
    assert not pool.reset()
    pool.end(held)
    assert serve(pool, B) == 0


def test_a_reset_forgets_everything() -> None:
    pool = PagePool(8, 4)
    serve(pool, A)
    pool.take_events()
    assert pool.reset()
    assert pool.take_events() == [CacheCleared()]
    assert serve(pool, A) == 0


@pytest.mark.parametrize("length", [0, 33])
def test_a_prompt_that_cannot_fit_is_refused(length: int) -> None:
    with pytest.raises(InvalidInputError, match="tokens"):
        PagePool(8, 4).begin([1] * length)


def test_a_pool_needs_a_page_and_a_page_a_token() -> None:
    with pytest.raises(ConfigError, match="pages"):
        PagePool(0)
    with pytest.raises(ConfigError, match="page_size"):
        PagePool(4, 0)


Key = tuple[object, ...]
"""A salt and the tokens behind it: what a page and all before it stand for."""


class SlowPool:
    """Pages by all that stands before them, in one list from next to go to last; no names, no events."""

    def __init__(self, pages: int, size: int) -> None:
        self.size = size
        self.content: dict[int, Key] = {}
        self.users = [0] * pages
        self.queue = list(range(pages))

    def hits(self, key: Key) -> list[int]:
        """The slots of the first pages of a prompt: of those with one content, the one that has had it longest."""
        found: list[int] = []
        for end in range(self.size, len(key) - 1, self.size):
            owners = [slot for slot, content in self.content.items() if content == key[: end + 1]]
            if not owners:
                break
            found.append(owners[0])
        return found

    def begin(self, key: Key) -> list[int]:
        taken = self.hits(key)
        for slot in taken:
            self.users[slot] += 1
            if slot in self.queue:
                self.queue.remove(slot)
        self.grow(key, taken)
        return taken

    def grow(self, key: Key, taken: list[int]) -> None:
        while len(taken) * self.size < len(key) - 1:
            slot = self.queue.pop(0)
            self.content.pop(slot, None)
            self.users[slot] += 1
            taken.append(slot)
        for end, slot in zip(range(self.size, len(key), self.size), taken, strict=False):
            self.content.setdefault(slot, key[: end + 1])

    def end(self, taken: list[int]) -> None:
        for slot in reversed(taken):
            self.users[slot] -= 1
            if not self.users[slot]:
                self.queue.insert(len(self.queue) if slot in self.content else 0, slot)


class Run(NamedTuple):
    allocation: Allocation
    key: Key
    taken: list[int]


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=12)
salts = st.sampled_from([None, "s"])


class PoolAndModel(RuleBasedStateMachine):
    """The pool hits what the slow model hits; whoever follows its events knows which pages it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(6, 2)
        self.slow = SlowPool(6, 2)
        self.runs: list[Run] = []
        self.copies: Counter[PageHash] = Counter()

    @rule(tokens=prompts, salt=salts)
    def begin(self, tokens: list[int], salt: str | None) -> None:
        hit = self.slow.hits((salt, *tokens))
        allocation = self.pool.begin(tokens, salt)
        if allocation is None:
            needed = -(-len(tokens) // 2) - len(hit)
            assert needed > len(self.slow.queue) - sum(slot in self.slow.queue for slot in hit)
            return
        assert allocation.cached_tokens == 2 * len(hit)
        key = (salt, *tokens)
        self.runs.append(Run(allocation, key, self.slow.begin(key)))

    @rule(tokens=prompts, salt=salts)
    def match(self, tokens: list[int], salt: str | None) -> None:
        assert self.pool.match(tokens, salt) == 2 * len(self.slow.hits((salt, *tokens)))

    @precondition(lambda self: self.runs)
    @rule(tokens=st.lists(st.integers(0, 1), max_size=3))
    def extend(self, tokens: list[int]) -> None:
        run = self.runs.pop(0)
        if self.pool.extend(run.allocation, tokens):
            run = run._replace(key=(*run.key, *tokens))
            self.slow.grow(run.key, run.taken)
        self.runs.append(run)

    @precondition(lambda self: self.runs)
    @rule()
    def end(self) -> None:
        run = self.runs.pop(0)
        self.pool.end(run.allocation)
        self.slow.end(run.taken)

    @rule()
    def reset(self) -> None:
        assert self.pool.reset() == (not self.runs)
        if not self.runs:
            self.slow.content.clear()

    @invariant()
    def events_tell_what_is_held(self) -> None:
        self.pool.check_invariants()
        for event in self.pool.take_events():
            if isinstance(event, PagesStored):
                self.copies.update(event.pages)
            elif isinstance(event, PagesRemoved):
                self.copies.subtract(event.pages)
            else:
                self.copies.clear()
        assert min(self.copies.values(), default=0) >= 0
        assert sum(self.copies.values()) == len(self.slow.content)
        assert len(+self.copies) == len(set(self.slow.content.values())) == self.pool.named_pages
        assert self.pool.free_pages == len(self.slow.queue)


TestPoolAndModel = PoolAndModel.TestCase
TestPoolAndModel.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
