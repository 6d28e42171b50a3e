"""The pages that one rank of an engine holds, mirrored from its events."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence

from prefixpilot.cache_events import GPU, CacheCleared, EventBatch, PageHash, PagesRemoved, PagesStored
from prefixpilot.residency.base import require
from prefixpilot.residency.page_keys import page_keys
from prefixpilot.residency.page_records import (
    DEFAULT_BOUNDS,
    Applied,
    Children,
    Key,
    Page,
    PageBounds,
    PageCounts,
    PrefixMatch,
    Tombstone,
)


class PageTable:
    """The pages of one data-parallel rank by name, and by parent and content, so that a prompt finds them.

    A page's name stands for all that is before it too, so pages form a forest: below the start of all prompts, and
    below pages that are not known (*orphans*: the subscriber came late). An orphan is found as soon as its parent is
    there. What is removed stays for a while as a *tombstone*, so that a question can be asked as of an earlier batch.

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
        self._pages: dict[PageHash, Page] = {}
        self._starts: Children = {}
        self._waiting: dict[PageHash, Children] = {}
        self._orphans = 0
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
        return self._orphans

    @property
    def doubtful(self) -> int:
        """Pages that came before batches were missed, and of which nothing was heard since."""
        return self._doubtful

    def holds(self, page: PageHash) -> bool:
        """Whether the engine can compute from a page. Its prefix may be gone all the same."""
        found = self._pages.get(page)
        return found is not None and found.copies > 0

    def media(self, page: PageHash) -> tuple[str, ...]:
        """Where a page is held, the medium that the engine computes from first."""
        found = self._pages.get(page)
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
        for page in self._walk(page_keys(token_ids, size, extra_keys, adapter)):
            held = page.copies > 0 if as_of is None else page.was_held(as_of)
            if held and len(names) * size == tokens:
                names.append(page.name)
            elif not held and not page.lower:
                break
            tokens += size
        return PrefixMatch(len(names) * size, tokens, tuple(names), certain)

    def _walk(self, keys: Iterable[bytes]) -> Iterator[Page]:
        children: Children | None = self._starts
        for key in keys:
            page = children.get(key) if children is not None else None
            if page is None:
                return
            yield page
            children = page.children

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

    def restart(self) -> None:
        """The engine has started anew: nothing is held, its batches count from 0, its pages may have another size."""
        self.sequence = self._horizon = -1
        self.page_size = None
        self._forget_all()

    def doubt(self) -> None:
        """Batches are missing: what is held now may be gone. O(1)."""
        self._epoch += 1
        self._doubtful = self._held

    def confirm(self, pages: Iterable[PageHash]) -> None:
        """The engine reported a hit on these pages: it holds them. O(pages)."""
        for name in pages:
            page = self._pages.get(name)
            if page is not None and page.copies:
                self._trust(page)

    def refute(self, pages: Iterable[PageHash]) -> tuple[PageHash, ...]:
        """The engine reported a miss on these pages: it does not hold them. Returns those that the table held."""
        for name in pages:
            page = self._pages.get(name)
            if page is not None and page.copies:
                self._release(page)
        return self._told()

    # -- inside: stored

    def _store(self, event: PagesStored) -> None:
        names, size = event.pages, event.page_size
        if event.group != self._group:
            self.counts.other_groups += len(names)
            return
        if self.page_size is None and event.medium == GPU:
            self.page_size = size
        if size != self.page_size:
            self.counts.other_sizes += len(names)
            return
        self.counts.stored += len(names)
        known, parent = self._pages, event.parent
        lower = None if event.medium == GPU else event.medium
        for name, key in zip(names, self._keys(event), strict=True):
            page = known.get(name)
            if page is None:
                if name == parent:
                    self.counts.dropped += 1
                    continue
                page = self._add(name, parent, key)
            elif type(page.key) is tuple and type(key) is bytes:
                self._rename(page, key)
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

    def _add(self, name: PageHash, parent: PageHash | None, key: Key) -> Page:
        page = self._pages[name] = Page(name, parent, key)
        if self._waiting:
            page.children = self._waiting.pop(name, None)
            if page.children is not None:
                self._orphans -= len(page.children)
        if parent is None:
            siblings = self._starts
        elif (above := self._pages.get(parent)) is not None:
            siblings = above.children = {} if above.children is None else above.children
        else:
            siblings = self._waiting.setdefault(parent, {})
            self._orphans += 1
        self._hang(page, siblings)
        return page

    def _rename(self, page: Page, key: Key) -> None:
        """Its tokens are told now, or were told for another page like it before."""
        siblings = self._siblings(page)
        if key not in siblings:
            del siblings[page.key]
            page.key = key
            siblings[key] = page

    def _hang(self, page: Page, siblings: Children) -> None:
        older = siblings.get(page.key)
        if older is not None:
            self.counts.alike += 1
            older.key = (older.name,)
            siblings[older.key] = older
        siblings[page.key] = page

    def _siblings(self, page: Page) -> Children:
        """Among which a page of this table stands."""
        if page.parent is None:
            return self._starts
        above = self._pages.get(page.parent)
        if above is None:
            return self._waiting[page.parent]
        assert above.children is not None
        return above.children

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
            page = self._pages.get(name)
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
        if self._pages.get(page.name) is page:
            self._prune_if_empty(page)

    def _prune_if_empty(self, page: Page) -> None:
        if page.copies or page.lower or page.past:
            return
        siblings = self._siblings(page)
        del siblings[page.key], self._pages[page.name]
        if page.parent is not None and page.parent not in self._pages:
            self._orphans -= 1
            if not siblings:
                del self._waiting[page.parent]
        if page.children:
            self._waiting[page.name] = page.children
            self._orphans += len(page.children)

    # -- inside: bounds

    def _keep_bounds(self) -> None:
        while len(self._pages) > self._bounds.pages:
            if self._tombstones:
                self._forget_oldest()
            elif self._waiting:
                self._drop_oldest_orphans()
            else:
                self._drop_leaf(next(iter(self._pages.values())))
        while self._orphans > self._bounds.orphans:
            self._drop_oldest_orphans()

    def _drop_oldest_orphans(self) -> None:
        group = self._waiting.pop(next(iter(self._waiting)))
        self._orphans -= len(group)
        self._drop(list(group.values()))

    def _drop_leaf(self, page: Page) -> None:
        for _ in range(len(self._pages)):  # an engine that tells nonsense may have made a circle
            if not page.children:
                break
            page = next(iter(page.children.values()))
        del self._siblings(page)[page.key]
        self._drop([page])

    def _drop(self, pages: list[Page]) -> None:
        """Give up pages that hang on nothing any more, and all below them."""
        for page in pages:
            del self._pages[page.name]
            self.counts.dropped += 1
            if page.copies:
                self._held -= 1
                self._trust(page)
                self._gone.append(page.name)
            page.copies, page.lower = 0, None
            pages.extend((page.children or {}).values())

    # -- tests

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if the table is broken. O(pages)."""
        pages = self._pages
        groups = [(None, self._starts), *self._waiting.items()]
        groups += [(page.name, page.children) for page in pages.values() if page.children]
        hung = [(parent, key, page) for parent, group in groups for key, page in group.items()]
        require(len(hung) == len(pages) <= self._bounds.pages, "a page hangs twice, or nowhere, or there are too many")
        for parent, key, page in hung:
            require(pages.get(page.name) is page, "a page that hangs somewhere has no name")
            require((page.parent, page.key) == (parent, key), "a page hangs in a wrong place")
            require(bool(page.copies or page.lower or page.past), "a page of which nothing is known")
            require(page.past is None or len(page.past) > 0, "an empty past")
        require(all(self._waiting.values()) and not set(self._waiting) & set(pages), "orphans wait for what is there")
        orphans = sum(map(len, self._waiting.values()))
        require(orphans == self._orphans <= self._bounds.orphans, "the count of orphans is wrong")
        held = [page for page in pages.values() if page.copies]
        require(len(held) == self._held, "the count of held pages is wrong")
        require(sum(p.epoch != self._epoch for p in held) == self._doubtful, "the count of doubtful pages is wrong")
        require(len(self._tombstones) <= self._bounds.tombstones, "too many tombstones")
        stays = sum(len(page.past or ()) for page in pages.values())
        buried = sum(pages.get(stone.page.name) is stone.page for stone in self._tombstones)
        require(stays == buried, "tombstones are not the stays that are over")
