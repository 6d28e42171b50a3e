"""Where pages hang: by name, and below their parents by what they hold, so that a prompt finds them. What is held of
them is the page table's to know."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from prefixpilot.cache_events import PageHash
from prefixpilot.residency.base import require
from prefixpilot.residency.page_records import Children, Key, Page, PageCounts


class PageForest:
    """Pages below the start of all prompts, and below parents that are not known (*orphans*: the subscriber came late).

    An orphan hangs where its parent will hang, so it is found as soon as that is there. Each change is O(1), but for
    what it takes away. Not thread-safe: one owner.

    Attributes:
        by_name: every page. Others may read it.
        orphans: pages whose parent is not known.

    Args:
        counts: is told of pages that are alike, and of pages given up.
    """

    def __init__(self, counts: PageCounts) -> None:
        self.by_name: dict[PageHash, Page] = {}
        self.orphans = 0
        self._counts = counts
        self._starts: Children = {}
        self._waiting: dict[PageHash, Children] = {}

    def __len__(self) -> int:
        return len(self.by_name)

    # -- look-up: nothing changes

    def walk(self, keys: Iterable[bytes]) -> Iterator[Page]:
        """The pages of a prompt from its start, as far as all of them are here."""
        children: Children | None = self._starts
        for key in keys:
            page = children.get(key) if children is not None else None
            if page is None:
                return
            yield page
            children = page.children

    def climb(self, last: PageHash) -> tuple[Page, ...]:
        """The pages from the start of a prompt to this one. O(length).

        Empty if one of them is not here, and for a circle, which an engine that tells nonsense can make.
        """
        pages: deque[Page] = deque()
        name: PageHash | None = last
        while name is not None:
            page = self.by_name.get(name)
            if page is None or len(pages) == len(self.by_name):
                return ()
            pages.appendleft(page)
            name = page.parent
        return tuple(pages)

    # -- change

    def add(self, name: PageHash, parent: PageHash | None, key: Key) -> Page:
        """A page that is not here yet. Of those that one parent's key does not tell apart the newest is found."""
        page = self.by_name[name] = Page(name, parent, key)
        if self._waiting:
            page.children = self._waiting.pop(name, None)
            if page.children is not None:
                self.orphans -= len(page.children)
        if parent is None:
            siblings = self._starts
        elif (above := self.by_name.get(parent)) is not None:
            siblings = above.children = {} if above.children is None else above.children
        else:
            siblings = self._waiting.setdefault(parent, {})
            self.orphans += 1
        older = siblings.get(key)
        if older is not None:
            self._counts.alike += 1
            older.key = (older.name,)
            siblings[older.key] = older
        siblings[key] = page
        return page

    def rename(self, page: Page, key: Key) -> None:
        """Its tokens are told now, or were told for another page like it before."""
        siblings = self._siblings(page)
        if key not in siblings:
            del siblings[page.key]
            page.key = key
            siblings[key] = page

    def remove(self, page: Page) -> None:
        """A page is not here any more; those below it wait for it."""
        siblings = self._siblings(page)
        del siblings[page.key], self.by_name[page.name]
        if page.parent is not None and page.parent not in self.by_name:
            self.orphans -= 1
            if not siblings:
                del self._waiting[page.parent]
        if page.children:
            self._waiting[page.name] = page.children
            self.orphans += len(page.children)

    def give_up_orphans(self) -> list[Page]:
        """Give up those that have waited longest for one parent, and all below them; nothing if none waits."""
        if not self._waiting:
            return []
        group = self._waiting.pop(next(iter(self._waiting)))
        self.orphans -= len(group)
        return self._give_up(list(group.values()))

    def give_up_leaf(self) -> list[Page]:
        """Give up the tail of what came first. O(its depth)."""
        page = next(iter(self.by_name.values()))
        for _ in range(len(self.by_name)):  # an engine that tells nonsense may have made a circle
            if not page.children:
                break
            page = next(iter(page.children.values()))
        del self._siblings(page)[page.key]
        return self._give_up([page])

    def _give_up(self, pages: list[Page]) -> list[Page]:
        """Pages that hang on nothing any more, and all below them."""
        for page in pages:
            del self.by_name[page.name]
            self._counts.dropped += 1
            pages.extend((page.children or {}).values())
        return pages

    def _siblings(self, page: Page) -> Children:
        """Among which a page that is here stands."""
        if page.parent is None:
            return self._starts
        above = self.by_name.get(page.parent)
        if above is None:
            return self._waiting[page.parent]
        assert above.children is not None
        return above.children

    # -- tests

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if the forest is broken. O(pages)."""
        pages = self.by_name
        groups = [(None, self._starts), *self._waiting.items()]
        groups += [(page.name, page.children) for page in pages.values() if page.children]
        hung = [(parent, key, page) for parent, group in groups for key, page in group.items()]
        require(len(hung) == len(pages), "a page hangs twice, or nowhere")
        for parent, key, page in hung:
            require(pages.get(page.name) is page, "a page that hangs somewhere has no name")
            require((page.parent, page.key) == (parent, key), "a page hangs in a wrong place")
        require(all(self._waiting.values()) and not set(self._waiting) & set(pages), "orphans wait for what is there")
        require(sum(map(len, self._waiting.values())) == self.orphans, "the count of orphans is wrong")
