"""Hash-chained pages, as vLLM's automatic prefix caching: only full pages are held and hit.

vLLM names a page by a hash over its tokens and the hash of the page before it, and frees pages from the tail of a
prompt, so a page never outlives its prefix. A tree of pages names the same things without hashing; it is the radix tree
over pages of equal size. Not modelled: pages that running requests pin, the last and partly filled page of each of
them, and that vLLM always computes the last token of a prompt anew (in a trace that token belongs to the question).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prefixpilot.errors import ConfigError
from prefixpilot.prefix_cache.base import Access, Segment, check_capacity, nonempty_segments
from prefixpilot.prefix_cache.eviction import LRU, EvictionPolicy
from prefixpilot.prefix_cache.radix import RadixPrefixCache


class PagedPrefixCache:
    """See :class:`~prefixpilot.prefix_cache.base.PrefixCache`, which this is. Costs of the radix cache, over pages.

    Args:
        capacity_tokens: the bound in tokens, of which only whole pages count; ``None`` for none.
        page_size: tokens of a page (vLLM: ``--block-size``, 16 by default).
        policy: which page goes first.

    Raises:
        ConfigError: ``page_size`` below 1, or ``capacity_tokens`` below ``page_size``.
    """

    def __init__(self, capacity_tokens: int | None, page_size: int, policy: EvictionPolicy = LRU) -> None:
        if page_size < 1:
            raise ConfigError("page_size", f"is {page_size}", "use an int of 1 or more")
        if capacity_tokens is not None and check_capacity(capacity_tokens) and capacity_tokens < page_size:
            raise ConfigError("capacity_tokens", f"is {capacity_tokens}", f"use at least one page of {page_size}")
        self._capacity = capacity_tokens
        self._page_size = page_size
        self._pages = RadixPrefixCache(self._whole(capacity_tokens), policy)

    @property
    def capacity_tokens(self) -> int | None:
        """The bound in tokens, as given; ``None`` for none."""
        return self._capacity

    @property
    def page_size(self) -> int:
        """Tokens of a page."""
        return self._page_size

    @property
    def used_tokens(self) -> int:
        """Tokens held now: a multiple of ``page_size``."""
        return self._pages.used_tokens

    def match_prefix(self, prompt: Sequence[Segment]) -> int:
        """Tokens of the longest held prefix of ``prompt``, a multiple of ``page_size``. Changes nothing."""
        return self._pages.match_prefix(self._split(prompt))

    def access(self, prompt: Sequence[Segment]) -> Access:
        """Match ``prompt``, then insert its other full pages, evicting what must go."""
        access = self._pages.access(self._split(prompt))
        return access._replace(total_tokens=sum(s.tokens for s in prompt))

    def truncate(self, prompt: Sequence[Segment], tokens: int) -> int:
        """Hold no more of ``prompt`` than the full pages of its first ``tokens`` tokens; returns how many tokens went.

        What other prompts hold behind that goes with it. O(nodes held).
        """
        return self._pages.truncate(self._split(prompt), tokens // self._page_size * self._page_size)

    def newer_tokens(self, prompt: Sequence[Segment], tokens: int) -> int:
        """How many held tokens LRU would keep longer than that page of ``prompt`` which follows ``tokens`` tokens.

        A cache of so many tokens is the largest one that would not hold that page. O(nodes held).
        """
        return self._pages.newer_tokens(self._split(prompt), tokens // self._page_size * self._page_size)

    def resize(self, capacity_tokens: int | None) -> None:
        """Another bound; what no longer fits is evicted, whatever was accessed last. O(nodes held).

        Raises:
            ConfigError: below one page.
        """
        if capacity_tokens is not None and check_capacity(capacity_tokens) and capacity_tokens < self._page_size:
            raise ConfigError("capacity_tokens", f"is {capacity_tokens}", f"use at least one page of {self._page_size}")
        self._capacity = capacity_tokens
        self._pages.resize(self._whole(capacity_tokens))

    def clear(self) -> None:
        """Hold nothing."""
        self._pages.clear()

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if the structure is broken. O(pages)."""
        self._pages.check_invariants()

    def _whole(self, tokens: int | None) -> int | None:
        return None if tokens is None else tokens // self._page_size * self._page_size

    def _split(self, prompt: Sequence[Segment]) -> list[Segment]:
        return list(_full_pages(nonempty_segments(prompt), self._page_size))


def _full_pages(segments: list[Segment], size: int) -> Iterator[Segment]:
    """The full pages, in order, as segments for the radix tree.

    A page's key is the pieces (segment, first token, end token) that stand in it. Pages that lie within one segment
    come as one run: whatever has one of them in this place has them all. Evicting cuts runs between pages, as every
    length is a multiple of ``size``.
    """
    pieces: list[tuple[Segment, int, int]] = []
    room = size
    for segment in segments:
        start = 0
        while start < segment.tokens:
            end = min(segment.tokens, start + room)
            if not pieces:
                end = max(end, start + (segment.tokens - start) // size * size)
            pieces.append((segment, start, end))
            room = max(room - (end - start), 0)
            start = end
            if not room:
                yield Segment(tuple(pieces), max(size, pieces[0][2] - pieces[0][1]))
                pieces, room = [], size
