"""The page table against a plain one: for every name the stays that it had, and matching by looking at all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from itertools import takewhile

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prefixpilot.cache_events import (
    GPU,
    CacheCleared,
    CacheEvent,
    EventBatch,
    PageHash,
    PagesRemoved,
    PagesStored,
    RequestsEvicted,
)
from prefixpilot.core import RequestId
from prefixpilot.residency.page_records import PageBounds
from prefixpilot.residency.pages import PageTable

SIZE = 2


@dataclass(frozen=True)
class Prompt:
    """What is asked for, and the names that the engine would give its full pages."""

    tokens: tuple[int, ...]
    salt: tuple[object, ...] | None
    adapter: str | None

    @property
    def extra_keys(self) -> tuple[tuple[object, ...] | None, ...]:
        """As vLLM writes them: the adapter in each, the salt in the first."""
        adapter = () if self.adapter is None else (self.adapter,)
        each: list[tuple[object, ...]] = [adapter for _ in range(len(self.tokens) // SIZE)]
        if each and self.salt is not None:
            each[0] = (*adapter, *self.salt)
        return tuple(extra or None for extra in each)

    @property
    def names(self) -> list[PageHash]:
        whole = len(self.tokens) // SIZE
        heads = [repr((self.salt, self.adapter, self.tokens[: (i + 1) * SIZE])) for i in range(whole)]
        return [PageHash(sha256(head.encode()).digest()[:8]) for head in heads]


WIDE = 2**32 + 1
PROMPTS = [
    Prompt((1, 1, 2, 2, 1, 1, 2), None, None),
    Prompt((1, 1, 2, 2, 2, 2, 1, 1), None, None),
    Prompt((1, 1, 2), None, None),
    Prompt((1, 1, WIDE, 2, 1, 1), None, None),
    Prompt((1, 1, 2, 2), ("a",), None),
    Prompt((1, 1, 2, 2), ("b", 1), None),
    Prompt((1, 1, 2, 2), ("a",), "lora"),
    Prompt((1, 1, 2, 2, 1, 1), None, "lora"),
    Prompt((1,), None, None),
]
"""Few, so that what happens meets what was there."""
prompts = st.sampled_from([*PROMPTS[:3], *PROMPTS])
media = st.sampled_from([GPU, GPU, "CPU"])
arrivals = st.tuples(prompts, st.integers(0, 2), media, st.booleans())


@dataclass
class Stays:
    """What is known of one name; ``None`` as an end: still there."""

    told: bool = False
    copies: int = 0
    lower: dict[str, int] = field(default_factory=dict)
    stays: list[tuple[int, int | None]] = field(default_factory=list)
    doubtful: bool = False

    def at(self, sequence: int | None) -> bool:
        if sequence is None:
            return self.copies > 0
        return any(came <= sequence and (gone is None or sequence < gone) for came, gone in self.stays)


class PageTableMachine(RuleBasedStateMachine):
    """Whatever an engine tells, in whatever order, table and plain model say the same of every prompt."""

    @initialize(tombstones=st.sampled_from([3, 10_000]))
    def start(self, tombstones: int) -> None:
        self.table = PageTable(bounds=PageBounds(tombstones=tombstones))
        self.small = tombstones < 10_000
        self.sequence = -1
        self.known: dict[PageHash, Stays] = {}
        self.table.page_size = SIZE

    # -- the plain model

    def store(self, event: PagesStored) -> None:
        for name in event.pages:
            page = self.known.setdefault(name, Stays())
            page.told = page.told or bool(event.token_ids)
            if event.medium != GPU:
                page.lower[event.medium] = page.lower.get(event.medium, 0) + 1
            elif not page.copies:
                page.copies, page.doubtful = 1, False
                page.stays.append((self.sequence, None))
            else:
                page.copies = 1 if page.doubtful else page.copies + 1
                page.doubtful = False

    def remove(self, event: PagesRemoved) -> list[PageHash]:
        gone = []
        for name in event.pages:
            page = self.known.get(name, Stays())
            if event.medium != GPU:
                if page.lower.get(event.medium):
                    page.lower[event.medium] -= 1
            elif page.copies > 1 and not page.doubtful:
                page.copies -= 1
            elif page.copies:
                self.end(page)
                gone.append(name)
        return gone

    def end(self, page: Stays) -> None:
        page.copies, page.doubtful = 0, False
        page.stays[-1] = (page.stays[-1][0], self.sequence)

    def forget_empty(self) -> None:
        self.known = {n: p for n, p in self.known.items() if p.copies or any(p.lower.values()) or p.stays}

    def expected(self, prompt: Prompt, as_of: int | None) -> tuple[int, int]:
        whole = held = 0
        for name in prompt.names:
            page = self.known.get(name)
            if page is None or not page.told or not (page.at(as_of) or any(page.lower.values())):
                break
            held += SIZE if held == whole and page.at(as_of) else 0
            whole += SIZE
        return held, whole

    # -- what happens

    def apply(self, *events: CacheEvent, skip: int = 0) -> None:
        self.sequence += 1 + skip
        if skip:
            self.doubt()
        removed: list[PageHash] = []
        cleared = False
        for event in events:
            if isinstance(event, PagesStored) and (event.group, event.page_size) == (0, SIZE):
                self.store(event)
            elif isinstance(event, PagesRemoved) and event.group == 0:
                removed += self.remove(event)
            elif isinstance(event, CacheCleared):
                self.known, removed, cleared = {}, [], True
        self.forget_empty()
        batch = EventBatch("engine", 0, self.sequence, events)
        assert self.table.apply(batch) == (tuple(removed), cleared)
        repeated = self.table.counts.repeated_batches
        assert self.table.apply(batch) == ((), False)
        assert self.table.counts.repeated_batches == repeated + 1

    def doubt(self) -> None:
        for page in self.known.values():
            page.doubtful = page.copies > 0

    def stored(self, prompt: Prompt, first: int, medium: str, *, told: bool) -> PagesStored | None:
        names = prompt.names
        first = min(first, max(len(names) - 1, 0))
        if not names:
            return None
        return PagesStored(
            tuple(names[first:]),
            names[first - 1] if first else None,
            prompt.tokens[first * SIZE : len(names) * SIZE] if told else (),
            SIZE,
            medium,
            prompt.adapter,
            prompt.extra_keys[first:],
        )

    @rule(many=st.lists(arrivals, min_size=1, max_size=4))
    def pages_come(self, many: list[tuple[Prompt, int, str, bool]]) -> None:
        events = [self.stored(prompt, first, medium, told=told or self.small) for prompt, first, medium, told in many]
        self.apply(*[event for event in events if event is not None])

    @rule(prompt=prompts, which=st.lists(st.integers(0, 3), min_size=1, max_size=3), medium=media)
    def pages_go(self, prompt: Prompt, which: list[int], medium: str) -> None:
        names = prompt.names
        self.apply(PagesRemoved(tuple(names[i] for i in which if i < len(names)), medium))

    @rule(prompt=prompts, keep=st.integers(0, 3))
    def a_tail_goes_and_comes_back_in_one_batch(self, prompt: Prompt, keep: int) -> None:
        stored = self.stored(prompt, keep, GPU, told=True)
        if stored is not None:
            self.apply(PagesRemoved(tuple(reversed(stored.pages))), stored)

    @rule(prompt=prompts, first=st.integers(1, 2))
    def a_tail_comes_to_a_lower_tier_and_goes(self, prompt: Prompt, first: int) -> None:
        """Its parent may not be known."""
        stored = self.stored(prompt, first, "CPU", told=True)
        if stored is not None:
            self.apply(stored)
            self.apply(PagesRemoved(stored.pages, "CPU"))

    @rule(prompt=prompts, group=st.integers(1, 2))
    def other_groups_and_other_sizes_do_not_count(self, prompt: Prompt, group: int) -> None:
        stored = self.stored(prompt, 0, GPU, told=True)
        if stored is None or not len(self.table):  # an empty table takes whatever size comes
            return
        before = self.table.counts.other_groups, self.table.counts.other_sizes
        other = stored._replace(page_size=3, token_ids=(1,) * 3 * len(stored.pages))
        self.apply(stored._replace(group=group), PagesRemoved(stored.pages, group=group), other)
        counts = self.table.counts
        assert counts.other_groups == before[0] + 2 * len(stored.pages)
        assert counts.other_sizes == before[1] + len(stored.pages)

    @rule(skip=st.integers(1, 3))
    def batches_are_lost(self, skip: int) -> None:
        self.apply(RequestsEvicted((RequestId("r"),)), skip=skip)

    @rule(prompt=prompts)
    def the_engine_reports_a_hit(self, prompt: Prompt) -> None:
        self.table.confirm(prompt.names)
        for name in prompt.names:
            if name in self.known:
                self.known[name].doubtful = False

    @rule(prompt=prompts)
    def the_engine_reports_a_miss(self, prompt: Prompt) -> None:
        held = [name for name in prompt.names if self.known.get(name, Stays()).copies]
        assert self.table.refute(prompt.names) == tuple(held)
        for name in held:
            self.end(self.known[name])
        self.forget_empty()

    @rule()
    def the_cache_is_cleared(self) -> None:
        self.apply(CacheCleared())

    @rule(size=st.sampled_from([1, 3]))
    def an_empty_cache_takes_pages_of_another_size(self, size: int) -> None:
        self.apply(CacheCleared())
        self.sequence += 1
        event = PagesStored((PageHash(b"another"),), None, (1,) * size, size)
        self.table.apply(EventBatch("engine", 0, self.sequence, (event,)))
        assert (self.table.page_size, self.table.match((1,) * size).tokens) == (size, size)
        self.apply(CacheCleared())
        self.table.page_size = SIZE

    @rule()
    def the_engine_starts_anew(self) -> None:
        self.table.restart()
        assert self.table.page_size is None
        self.table.page_size = SIZE
        self.known, self.sequence = {}, -1

    # -- what is asked

    @invariant()
    def every_prompt_is_matched_as_it_should(self) -> None:
        for prompt in PROMPTS:
            extra = () if prompt.salt is None else (prompt.salt,)
            for as_of in (None, *range(self.sequence - 4, self.sequence + 1)):
                found = self.table.match(prompt.tokens, extra_keys=extra, adapter=prompt.adapter, as_of=as_of)
                if found.certain:
                    assert (found.tokens, found.lower_tokens) == self.expected(prompt, as_of)
                assert list(found.pages) == prompt.names[: found.tokens // SIZE]
            assert self.table.match(prompt.tokens).certain
            self.single_pages(prompt)
            self.paths(prompt)

    def single_pages(self, prompt: Prompt) -> None:
        for name in prompt.names:
            page = self.known.get(name, Stays())
            assert self.table.holds(name) == bool(page.copies)
            media = {GPU: page.copies, **page.lower}
            assert set(self.table.media(name)) == {medium for medium, copies in media.items() if copies}

    def paths(self, prompt: Prompt) -> None:
        """Its pages by their tokens, and by the last of them."""
        extra = () if prompt.salt is None else (prompt.salt,)
        path = self.table.known_path(prompt.tokens, extra_keys=extra, adapter=prompt.adapter)
        known = list(takewhile(lambda name: name in self.known and self.known[name].told, prompt.names))
        assert list(path) == (prompt.names[: len(path)] if self.small else known)
        for end in range(1, len(prompt.names) + 1):
            whole = all(self.known.get(name, Stays()).copies for name in prompt.names[:end])
            assert self.table.chain(prompt.names[end - 1]) == (tuple(prompt.names[:end]) if whole else ())

    @invariant()
    def sound(self) -> None:
        self.table.check_invariants()
        assert len(self.table) == sum(page.copies > 0 for page in self.known.values())
        assert self.table.doubtful == sum(page.doubtful for page in self.known.values())


TestPageTable = PageTableMachine.TestCase
TestPageTable.settings = settings(max_examples=80, stateful_step_count=25)

few_names = st.integers(0, 5).map(lambda n: PageHash(bytes([n])))
hostile: st.SearchStrategy[CacheEvent] = st.one_of(
    st.builds(
        lambda pages, parent, tokens, size, medium, extra: PagesStored(
            tuple(pages), parent, tuple(tokens), size, medium, None, tuple(extra)
        ),
        st.lists(few_names, max_size=3),
        st.none() | few_names,
        st.lists(st.integers(-2, 2), max_size=3),
        st.just(1),
        st.sampled_from([GPU, GPU, "CPU"]),
        st.lists(st.sampled_from([None, (), ("x",), "x"]), max_size=2),
    ),
    st.builds(
        lambda pages, medium: PagesRemoved(tuple(pages), medium), st.lists(few_names), st.sampled_from([GPU, ""])
    ),
)


@given(st.lists(st.lists(hostile, max_size=4), max_size=12), st.integers(1, 6), st.integers(1, 3), st.integers(1, 3))
def test_nonsense_breaks_neither_the_structure_nor_the_bounds(
    batches: list[list[CacheEvent]], pages: int, tombstones: int, orphans: int
) -> None:
    table = PageTable(bounds=PageBounds(pages, tombstones, orphans))
    held: set[PageHash] = set()
    for sequence, events in enumerate(batches):
        removed = table.apply(EventBatch("engine", 0, sequence, tuple(events))).removed
        table.check_invariants()
        held.update(name for event in events if isinstance(event, PagesStored) for name in event.pages)
        assert held.issuperset(removed)
        assert table.match((0, 1, 2, 1)).tokens <= 4
