"""Which leaf of a prefix cache goes first. A policy is one method.

Only leaves are evicted (an engine cannot use a suffix whose prefix is gone), from the tail towards the head. Time is
the count of accesses. There are no ties: one access touches one path, and two leaves never lie on one path.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol


class Usage(NamedTuple):
    """How a part of the cache was used. All its tokens share these figures.

    Attributes:
        inserted: number of the access that inserted it.
        last_access: number of the last access whose prefix it was part of, its insertion included.
        hits: how many such accesses there were, its insertion included.
    """

    inserted: int
    last_access: int
    hits: int


class EvictionPolicy(Protocol):
    """Orders leaves for eviction."""

    def priority(self, usage: Usage) -> tuple[int, int]:
        """The leaf of lowest priority goes first.

        Must never fall when a leaf is accessed: the caches rely on it to keep one queue entry a leaf. Must differ
        between leaves, so that the result is deterministic; ending in ``last_access`` or ``inserted`` is enough.
        """
        ...


class _LeastRecentlyUsed:
    def priority(self, usage: Usage) -> tuple[int, int]:
        return (usage.last_access, 0)


class _LeastFrequentlyUsed:
    def priority(self, usage: Usage) -> tuple[int, int]:
        return (usage.hits, usage.last_access)


class _FirstInFirstOut:
    def priority(self, usage: Usage) -> tuple[int, int]:
        return (usage.inserted, 0)


LRU: Final[EvictionPolicy] = _LeastRecentlyUsed()
"""The leaf whose last access is oldest goes first."""

LFU: Final[EvictionPolicy] = _LeastFrequentlyUsed()
"""The leaf with the fewest accesses goes first; among equals the one whose last access is oldest."""

FIFO: Final[EvictionPolicy] = _FirstInFirstOut()
"""The leaf that was inserted first goes first, however often it was used."""

POLICIES: Final[Mapping[str, EvictionPolicy]] = MappingProxyType({"lru": LRU, "lfu": LFU, "fifo": FIFO})
"""The policies by the name that settings and flags use."""
