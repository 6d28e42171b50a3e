"""The pages that one rank of an engine holds, mirrored from its events."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence

from prefixpilot.cache_events import GPU, CacheCleared, EventBatch, PageHash, PagesRemoved, PagesStored
from prefixpilot.residency.base import require
from prefixpilot.residency.page_forest import PageForest
from prefixpilot.residency.page_keys import page_keys
from prefixpilot.residency.page_records import (
    DEFAULT_BOUNDS,
    Applied,
    Key,
    Page,
    PageBounds,
    PageCounts,
    PrefixMatch,
    Tombstone,
)


class PageTable:
    """The pages of one data-parallel rank by name, and by parent and content, so that a prompt finds them.

    A page's name stands for all that is before it too, so pages form a forest, which is
    :class:`~prefixpilot.residency.page_forest.PageForest`. What is removed stays for a while as a *tombstone*, so that
    a question can be asked as of an earlier batch.

    Cost of a page stored or removed: O(1). Memory: O(pages held + tombstones). Not thread-safe: one owner.

    Args:
        group: the KV cache group that decides what is cached (full attention); others are counted and left out.
        bounds: how much is kept.
    """

    def __init__(self, *, group: int = 0, bounds: PageBounds = DEFAULT_BOUNDS) -> None:
        self._group = group
        self._bounds = bounds
        self.counts = PageCounts()
        self.page_size: int | None = None
        self.sequence = -1
        self._horizon = -1
        self._epoch = 0
        self._forget_all()

    def _forget_all(self) -> None:
        self._forest = PageForest(self.counts)
        self._held = 0
        self._doubtful = 0
        self._gone: list[PageHash] = []
        self._tombstones: deque[Tombstone] = deque()

    # -- look-up: nothing changes

    def __len__(self) -> int:
        """Pages that the engine can compute from."""
        return self._held

    @property
    def orphans(self) -> int:
        """Pages whose parent is not known."""
        return self._forest.orphans

    @property
    def doubtful(self) -> int:
        """Pages that came before batches were missed, and of which nothing was heard since."""
        return self._doubtful

    def holds(self, page: PageHash) -> bool:
        """Whether the engine can compute from a page. Its prefix may be gone all the same."""
        found = self._forest.by_name.get(page)
        return found is not None and found.copies > 0

    def media(self, page: PageHash) -> tuple[str, ...]:
        """Where a page is held, the medium that the engine computes from first."""
        found = self._forest.by_name.get(page)
        if found is None:
            return ()
        return ((GPU,) if found.copies else ()) + tuple(found.lower or ())

    def match(
        self,
        token_ids: Sequence[int],
        *,
        extra_keys: Sequence[Hashable] = (),
        adapter: str | None = None,
        as_of: int | None = None,
    ) -> PrefixMatch:
        """The longest prefix of a prompt that is held, in whole pages. O(tokens of it).

        What engines report is less if all of a prompt is held: see :func:`~prefixpilot.residency.base.reported_tokens`.

        Args:
            extra_keys, adapter: as in :class:`~prefixpilot.cache_events.PagesStored`; a page beyond the last has none.
            as_of: number of the batch after which the question is asked; without it, now. Lower tiers are as they are
                now, and the answer is not ``certain`` if removals after that batch have been forgotten.
        """
        certain = as_of is None or as_of >= self._horizon
        size = self.page_size
        if size is None:
            return PrefixMatch(0, 0, (), certain)
        names: list[PageHash] = []
        tokens = 0
        for page in self._forest.walk(page_keys(token_ids, size, extra_keys, adapter)):
            held = page.copies > 0 if as_of is None else page.was_held(as_of)
            if held and len(names) * size == tokens:
                names.append(page.name)
            elif not held and not page.lower:
                break
            tokens += size
        return PrefixMatch(len(names) * size, tokens, tuple(names), certain)

    def known_path(
        self, token_ids: Sequence[int], *, extra_keys: Sequence[Hashable] = (), adapter: str | None = None
    ) -> tuple[PageHash, ...]:
        """Names of a prompt's pages from its start, as far as each is held or is remembered. O(tokens of them)."""
        if self.page_size is None:
            return ()
        keys = page_keys(token_ids, self.page_size, extra_keys, adapter)
        return tuple(page.name for page in self._forest.walk(keys))

    def chain(self, last: PageHash) -> tuple[PageHash, ...]:
        """The pages of the prompt that ends with this one, from its start: for prompts whose tokens nobody tells.

        Empty if one of them is not held. O(length).
        """
        pages = self._forest.climb(last)
        return tuple(page.name for page in pages) if all(page.copies for page in pages) else ()

    # -- change

    def apply(self, batch: EventBatch) -> Applied:
        """Take over what a batch tells. Nothing if a batch of this number, or a later one, was taken over before.

        Batches left out make all pages held so far :attr:`doubtful`. O(pages).
        """
        if batch.sequence <= self.sequence:
            self.counts.repeated_batches += 1
            return Applied()
        missing = batch.sequence - self.sequence - 1
        if missing:
            self.counts.missing_batches += missing
            self.doubt()
        self.sequence = batch.sequence
        cleared = False
        for event in batch.events:
            if isinstance(event, PagesStored):
                self._store(event)
            elif isinstance(event, PagesRemoved):
                self._remove(event)
            elif isinstance(event, CacheCleared):
                self.clear()
                cleared = True
        return Applied(self._told(), cleared)

    def clear(self) -> None:
        """Nothing is held any more. What it was before now cannot be asked."""
        self._forget_all()
        self._horizon = self.sequence

    def restart(self, number: int = -1) -> None:
        """The engine has started anew: nothing is held, and its pages may have another size.

        Args:
            number: its first batch has the next one; others may be missing before that.
        """
        self.sequence = self._horizon = number
        self.page_size = None
        self._forget_all()

    def doubt(self) -> None:
        """Batches are missing: what is held now may be gone. O(1)."""
        self._epoch += 1
        self._doubtful = self._held

    def confirm(self, pages: Iterable[PageHash]) -> None:
        """The engine reported a hit on these pages: it holds them. O(pages)."""
        for name in pages:
            page = self._forest.by_name.get(name)
            if page is not None and page.copies:
                self._trust(page)

    def refute(self, pages: Iterable[PageHash]) -> tuple[PageHash, ...]:
        """The engine reported a miss on these pages: it does not hold them. Returns those that the table held."""
        for name in pages:
            page = self._forest.by_name.get(name)
            if page is not None and page.copies:
                self._release(page)
        return self._told()

    # -- inside: stored

    def _store(self, event: PagesStored) -> None:
        names, size = event.pages, event.page_size
        if event.group != self._group:
            self.counts.other_groups += len(names)
            return
        if event.medium == GPU and (self.page_size is None or not len(self._forest)):
            self.page_size = size
        if size != self.page_size:
            self.counts.other_sizes += len(names)
            return
        self.counts.stored += len(names)
        known, parent = self._forest.by_name, event.parent
        lower = None if event.medium == GPU else event.medium
        for name, key in zip(names, self._keys(event), strict=True):
            page = known.get(name)
            if page is None:
                if name == parent:
                    self.counts.dropped += 1
                    continue
                page = self._forest.add(name, parent, key)
            elif type(page.key) is tuple and type(key) is bytes:
                self._forest.rename(page, key)
            if lower is None:
                self._take(page)
            else:
                page.add_lower(lower)
            parent = name
        self._keep_bounds()

    def _keys(self, event: PagesStored) -> Iterable[Key]:
        if len(event.token_ids) == len(event.pages) * event.page_size:
            return page_keys(event.token_ids, event.page_size, event.extra_keys, event.adapter)
        self.counts.untold += len(event.pages)
        return [(name,) for name in event.pages]

    def _take(self, page: Page) -> None:
        """The engine can compute from one copy more."""
        if not page.copies:
            page.came, page.epoch = self.sequence, self._epoch
            self._held += 1
        elif page.epoch != self._epoch:
            # Whether it had been removed meanwhile is not known; this copy is sure.
            self._trust(page)
            page.copies = 0
        page.copies += 1

    def _trust(self, page: Page) -> None:
        if page.epoch != self._epoch:
            page.epoch = self._epoch
            self._doubtful -= 1

    # -- inside: removed

    def _remove(self, event: PagesRemoved) -> None:
        if event.group != self._group:
            self.counts.other_groups += len(event.pages)
            return
        self.counts.removed += len(event.pages)
        gpu = event.medium == GPU
        for name in event.pages:
            page = self._forest.by_name.get(name)
            if page is None or not (page.copies if gpu else page.lower and event.medium in page.lower):
                self.counts.unknown_removals += 1
            elif not gpu:
                page.drop_lower(event.medium)
                self._prune_if_empty(page)
            elif page.copies > 1 and page.epoch == self._epoch:
                page.copies -= 1
            else:
                self._release(page)

    def _release(self, page: Page) -> None:
        """The engine can no longer compute from it."""
        page.copies = 0
        self._held -= 1
        self._trust(page)
        self._gone.append(page.name)
        page.past = page.past or []
        page.past.append((page.came, self.sequence))
        self._tombstones.append(Tombstone(page, self.sequence))
        if len(self._tombstones) > self._bounds.tombstones:
            self._forget_oldest()

    def _told(self) -> tuple[PageHash, ...]:
        gone, self._gone = tuple(self._gone), []
        return gone

    def _forget_oldest(self) -> None:
        """Forget the oldest tombstone, and the page if nothing else is known of it."""
        page, gone = self._tombstones.popleft()
        self._horizon = max(self._horizon, gone)
        if page.past is not None:
            del page.past[0]
            page.past = page.past or None
        if self._forest.by_name.get(page.name) is page:
            self._prune_if_empty(page)

    def _prune_if_empty(self, page: Page) -> None:
        if not (page.copies or page.lower or page.past):
            self._forest.remove(page)

    # -- inside: bounds

    def _keep_bounds(self) -> None:
        forest, bounds = self._forest, self._bounds
        while len(forest) > bounds.pages:
            if self._tombstones:
                self._forget_oldest()
            else:
                self._lose(forest.give_up_orphans() or forest.give_up_leaf())
        while forest.orphans > bounds.orphans:
            self._lose(forest.give_up_orphans())

    def _lose(self, pages: Iterable[Page]) -> None:
        """Pages were given up."""
        for page in pages:
            if page.copies:
                self._held -= 1
                self._trust(page)
                self._gone.append(page.name)

    # -- tests

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if the table is broken. O(pages)."""
        self._forest.check_invariants()
        pages = self._forest.by_name
        require(len(pages) <= self._bounds.pages, "too many pages")
        require(self._forest.orphans <= self._bounds.orphans, "too many orphans")
        for page in pages.values():
            require(bool(page.copies or page.lower or page.past), "a page of which nothing is known")
            require(page.past is None or len(page.past) > 0, "an empty past")
        held = [page for page in pages.values() if page.copies]
        require(len(held) == self._held, "the count of held pages is wrong")
        require(sum(p.epoch != self._epoch for p in held) == self._doubtful, "the count of doubtful pages is wrong")
        require(len(self._tombstones) <= self._bounds.tombstones, "too many tombstones")
        stays = sum(len(page.past or ()) for page in pages.values())
        buried = sum(pages.get(stone.page.name) is stone.page for stone in self._tombstones)
        require(stays == buried, "tombstones are not the stays that are over")
