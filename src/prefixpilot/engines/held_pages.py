"""Which finished requests still have their whole prompt in an engine's pages (the paper's request-id protocol). Pure.

A request is evicted as soon as one page of its prompt is given to another: so whatever has not been reported is there,
to its last full page. What it shares with others stays known by them. Page-exact knowledge is what KV events are for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from prefixpilot.errors import InvariantError

MOST_REQUESTS: Final = 100_000


class HeldPages:
    """Pages, by number, and the finished requests whose prompts they hold. Not safe for threads.

    Args:
        most_requests: how many finished requests are remembered; then the oldest is reported as evicted.
    """

    def __init__(self, most_requests: int = MOST_REQUESTS) -> None:
        self._most = most_requests
        self._pages: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._requests: dict[int, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._pages)

    def finished(self, request_id: str, pages: Sequence[int]) -> list[str]:
        """A request is over; its prompt stands in ``pages``, all full. Returns who is forgotten for it. O(pages)."""
        if not pages:
            return []
        self._forget(request_id)
        self._pages[request_id] = tuple(pages)
        for page in pages:
            self._requests.setdefault(page, {})[request_id] = None
        if len(self._pages) <= self._most:
            return []
        oldest = next(iter(self._pages))
        self._forget(oldest)
        return [oldest]

    def taken(self, pages: Iterable[int]) -> list[str]:
        """Pages were given to another request: whose prompts are broken by it, in the order in which they finished
        for each page. O(pages of those requests)."""
        evicted: list[str] = []
        for page in pages:
            for request_id in list(self._requests.get(page, ())):
                self._forget(request_id)
                evicted.append(request_id)
        return evicted

    def cleared(self) -> list[str]:
        """The cache was emptied: all of them."""
        evicted = list(self._pages)
        self._pages.clear()
        self._requests.clear()
        return evicted

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if the two sides differ. O(everything held); for tests."""
        pairs = {(request_id, page) for request_id, pages in self._pages.items() for page in pages}
        mirrored = {(request_id, page) for page, ids in self._requests.items() for request_id in ids}
        if pairs != mirrored or not all(self._requests.values()) or len(self._pages) > self._most:
            raise InvariantError("held pages: requests and pages differ")

    def _forget(self, request_id: str) -> None:
        for page in self._pages.pop(request_id, ()):
            requests = self._requests.get(page, {})
            requests.pop(request_id, None)
            if not requests:
                self._requests.pop(page, None)
