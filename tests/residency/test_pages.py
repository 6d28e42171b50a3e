"""The page table, one behaviour a test."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from prefixpilot.cache_events import GPU, CacheCleared, CacheEvent, EventBatch, PageHash, PagesRemoved, PagesStored
from prefixpilot.errors import ConfigError, InvariantError
from prefixpilot.residency.base import reported_tokens
from prefixpilot.residency.page_keys import page_keys
from prefixpilot.residency.page_records import PageBounds
from prefixpilot.residency.pages import PageTable

A, B, C, D = (PageHash(bytes([n]) * 8) for n in range(4))
PROMPT = tuple(range(100, 112))
"""Three pages of four tokens: A, B and C."""


def stored(
    pages: Iterable[PageHash] = (A, B, C),
    parent: PageHash | None = None,
    tokens: Iterable[int] = PROMPT,
    medium: str = GPU,
) -> PagesStored:
    return PagesStored(tuple(pages), parent, tuple(tokens), 4, medium)


class Engine:
    """Sends batches to a table."""

    def __init__(self, bounds: PageBounds | None = None) -> None:
        self.table = PageTable(bounds=bounds or PageBounds())

    def send(self, *events: CacheEvent, sequence: int | None = None) -> tuple[PageHash, ...]:
        number = self.table.sequence + 1 if sequence is None else sequence
        removed = self.table.apply(EventBatch("e", 0, number, events)).removed
        self.table.check_invariants()
        return removed

    def hit(self, tokens: Iterable[int] = PROMPT, as_of: int | None = None) -> int:
        return self.table.match(tuple(tokens), as_of=as_of).tokens


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_a_prompt_is_found_page_by_page(engine: Engine) -> None:
    assert engine.hit() == 0
    engine.send(stored())
    assert engine.table.match(PROMPT) == (12, 12, (A, B, C), True)
    assert engine.table.match(PROMPT[:11]).pages == (A, B)
    assert engine.hit([*PROMPT[:8], 0, 0, 0, 0]) == 8
    assert engine.hit([0, *PROMPT[1:]]) == 0


def test_a_late_subscriber_finds_a_prompt_once_its_beginning_comes(engine: Engine) -> None:
    engine.send(stored((C,), B, PROMPT[8:]), sequence=0)
    assert (engine.hit(), engine.table.orphans, len(engine.table)) == (0, 1, 1)
    engine.send(stored((A, B), None, PROMPT[:8]))
    assert (engine.hit(), engine.table.orphans) == (12, 0)


def test_a_page_in_the_middle_goes_and_comes_back(engine: Engine) -> None:
    engine.send(stored())
    assert engine.send(PagesRemoved((B,))) == (B,)
    assert (engine.hit(), engine.table.holds(C)) == (4, True)
    engine.send(stored((B,), A, PROMPT[4:8]))
    assert engine.hit() == 12


def test_a_page_held_twice_goes_with_its_second_copy(engine: Engine) -> None:
    engine.send(stored(), stored())
    assert engine.send(PagesRemoved((C, B, A))) == ()
    assert engine.hit() == 12
    assert engine.send(PagesRemoved((C,)), PagesRemoved((B,))) == (C, B)
    assert engine.hit() == 4


def test_lower_tiers_are_told_apart(engine: Engine) -> None:
    engine.send(stored(), stored(medium="CPU"))
    assert engine.table.media(A) == (GPU, "CPU")
    engine.send(PagesRemoved((B,)))
    assert engine.table.match(PROMPT) == (4, 12, (A,), True)
    engine.send(PagesRemoved((B,), "CPU"))
    assert engine.table.match(PROMPT)[:2] == (4, 4)
    engine.send(PagesRemoved((A,)), PagesRemoved((C,)))
    assert engine.table.match(PROMPT)[:2] == (0, 4)
    assert engine.table.media(D) == ()


def test_a_page_of_a_lower_tier_alone_is_forgotten_with_it(engine: Engine) -> None:
    engine.send(stored((D,), None, (1, 2, 3, 4)), stored(medium="CPU"))
    engine.send(PagesRemoved((A, B, C), "CPU"))
    assert engine.table.match(PROMPT)[:2] == (0, 0)
    assert engine.table.counts.unknown_removals == 0


def test_questions_as_of_an_earlier_batch(engine: Engine) -> None:
    engine.send(stored((A,), None, PROMPT[:4]))
    engine.send(stored((B, C), A, PROMPT[4:]))
    engine.send(PagesRemoved((C,)))
    engine.send(stored((C,), B, PROMPT[8:]))
    assert [engine.hit(as_of=sequence) for sequence in range(-1, 4)] == [0, 4, 12, 8, 12]


def test_what_was_forgotten_is_not_certain() -> None:
    engine = Engine(PageBounds(tombstones=1))
    engine.send(stored())
    engine.send(PagesRemoved((C,)))
    engine.send(PagesRemoved((B,)))
    assert not engine.table.match(PROMPT, as_of=0).certain
    assert engine.table.match(PROMPT, as_of=1) == (8, 8, (A, B), True)


def test_a_cleared_cache_holds_nothing_and_says_nothing_of_before(engine: Engine) -> None:
    engine.send(stored())
    engine.send(PagesRemoved((C,)), CacheCleared(), stored((A,), None, PROMPT[:4]))
    assert engine.hit() == 4
    assert not engine.table.match(PROMPT, as_of=0).certain


def test_salts_and_adapters_select_pages(engine: Engine) -> None:
    engine.send(
        PagesStored((A, B), None, PROMPT[:8], 4, extra_keys=(("tenant",), None)),
        PagesStored((C, D), None, PROMPT[:8], 4, adapter="lora", extra_keys=(("lora",), ("lora",))),
    )
    table = engine.table
    assert table.match(PROMPT).tokens == 0
    assert table.match(PROMPT, extra_keys=(("tenant",),)).pages == (A, B)
    assert table.match(PROMPT, adapter="lora").pages == (C, D)
    assert table.match(PROMPT, adapter="other").tokens == 0


def test_of_pages_that_nothing_tells_apart_the_newest_is_found(engine: Engine) -> None:
    engine.send(stored((A,), None, PROMPT[:4]))
    engine.send(stored((D,), None, PROMPT[:4]))
    assert engine.table.match(PROMPT).pages == (D,)
    assert engine.table.counts.alike == 1
    assert engine.send(PagesRemoved((A,))) == (A,)
    engine.send(stored((A,), None, PROMPT[:4]))
    assert engine.table.match(PROMPT).pages == (D,)


def test_pages_without_tokens_are_found_once_their_tokens_are_told(engine: Engine) -> None:
    engine.send(stored(tokens=()))
    assert (engine.hit(), engine.table.holds(B), engine.table.counts.untold) == (0, True, 3)
    engine.send(stored())
    assert engine.hit() == 12


def test_batches_are_taken_over_once(engine: Engine) -> None:
    engine.send(stored())
    engine.send(PagesRemoved((C,)), sequence=0)
    assert engine.hit() == 12
    assert engine.table.counts.repeated_batches == 1


def test_missing_batches_make_all_doubtful_until_something_is_heard(engine: Engine) -> None:
    engine.send(stored(), stored())
    engine.send(stored((D,), C, (1, 2, 3, 4)), sequence=5)
    table = engine.table
    assert (table.counts.missing_batches, table.doubtful, len(table)) == (4, 3, 4)
    table.confirm((A, D, PageHash(b"?")))
    assert table.doubtful == 2
    assert engine.send(PagesRemoved((B,))) == (B,)
    assert engine.send(stored(), PagesRemoved((C,))) == (C,)
    assert (table.doubtful, engine.hit()) == (0, 8)
    assert table.refute((A, C)) == (A,)
    assert engine.hit() == 0


def test_another_page_size_comes_with_another_start(engine: Engine) -> None:
    engine.send(stored())
    engine.send(PagesStored((D,), None, (1, 2), 2))
    assert engine.table.counts.other_sizes == 1
    engine.table.restart()
    engine.send(PagesStored((D,), None, (1, 2), 2))
    assert (engine.table.page_size, engine.table.match((1, 2)).pages) == (2, (D,))


def test_bounds_let_the_oldest_go() -> None:
    engine = Engine(PageBounds(pages=3, tombstones=1, orphans=2))
    engine.send(stored())
    engine.send(PagesRemoved((C,)), stored((D,), C, (1, 2, 3, 4)))
    assert (engine.hit(), engine.table.orphans) == (8, 1)
    assert engine.send(stored((C,), B, PROMPT[8:])) == (D,)
    assert (engine.hit(), engine.table.counts.dropped) == (12, 1)
    assert engine.send(stored((D,), None, (1, 2, 3, 4))) == (C,)
    assert engine.hit() == 8


def test_orphans_that_have_waited_longest_go_first() -> None:
    engine = Engine(PageBounds(orphans=2))
    other = [PageHash(bytes([n])) for n in range(6)]
    assert engine.send(*[stored((other[n],), other[n + 1], (1, 2, 3, 4)) for n in (0, 2, 4)]) == (other[0],)
    assert engine.table.orphans == 2


def test_a_page_that_follows_itself_is_left_out(engine: Engine) -> None:
    engine.send(stored((A,), A, PROMPT[:4]))
    assert len(engine.table) == 0


@pytest.mark.parametrize("name", ["pages", "tombstones", "orphans"])
def test_bounds_are_ints_of_1_or_more(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        PageBounds(**{name: 0})


def test_invariants_are_seen_to_break(engine: Engine) -> None:
    engine.send(stored())
    engine.table._held = 2
    with pytest.raises(InvariantError, match="held pages"):
        engine.table.check_invariants()


def test_long_pages_are_digests_and_unusual_tokens_no_trouble() -> None:
    long, unusual = list(range(40)), [*range(16), *range(-1, 15)]
    (key,) = page_keys(long, 40)
    assert len(key) == 17 and len(next(page_keys(long, 4))) == 16
    assert next(page_keys(unusual, 16)) == next(page_keys(range(16), 16))
    assert next(page_keys([*long, -1], 40)) == key
    assert list(page_keys([-1, 2**40], 2)) != list(page_keys([-1, 2**41], 2))
    assert list(page_keys([1, 2, 3], 2, (("x",),))) != list(page_keys([1, 2, 3], 2))


@pytest.mark.parametrize(
    ("held", "prompt", "size", "reported"), [(32, 32, 16, 16), (32, 33, 16, 32), (5, 9, 1, 5), (0, 0, 16, 0)]
)
def test_what_engines_report(held: int, prompt: int, size: int, reported: int) -> None:
    assert reported_tokens(held, prompt, size) == reported


def test_an_empty_table_takes_the_size_of_the_next_page() -> None:
    """An engine that begins anew may have other pages; one that goes on has not."""
    table = PageTable()
    first, other = (PagesStored((PageHash(b"%d" % n),), None, tuple(range(n)), n) for n in (2, 3))
    table.apply(EventBatch("e", 0, 0, (first, other)))
    assert (table.page_size, table.counts.other_sizes, len(table)) == (2, 1, 1)
    table.apply(EventBatch("e", 0, 1, (CacheCleared(), other)))
    assert (table.page_size, table.match((0, 1, 2)).tokens) == (3, 3)
