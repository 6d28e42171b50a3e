"""The pages of a whole prompt, by the last of them: for prompts whose tokens nobody tells."""

from __future__ import annotations

from collections import deque

from prefixpilot.cache_events import PageHash
from prefixpilot.residency.pages import PageTable


def chain(table: PageTable, last: PageHash) -> tuple[PageHash, ...]:
    """The pages of the prompt that ends with this one, from its start. O(length).

    Empty if one of them is not held, and for a circle, which an engine that tells nonsense can make.
    """
    names: deque[PageHash] = deque()
    page: PageHash | None = last
    while page is not None:
        if not table.holds(page) or len(names) == len(table):
            return ()
        names.appendleft(page)
        page = table._pages[page].parent  # a friend: of the same room
    return tuple(names)
