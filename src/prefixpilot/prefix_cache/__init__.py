"""Models of the ENGINE's prefix cache: what it would hold and hit. They never look at our index."""

from prefixpilot.prefix_cache.base import Access, PrefixCache, Segment
from prefixpilot.prefix_cache.eviction import FIFO, LFU, LRU, POLICIES, EvictionPolicy, Usage
from prefixpilot.prefix_cache.paged import PagedPrefixCache
from prefixpilot.prefix_cache.radix import RadixPrefixCache
from prefixpilot.prefix_cache.replay import ReplayResult, Window, replay

__all__ = [
    "FIFO",
    "LFU",
    "LRU",
    "POLICIES",
    "Access",
    "EvictionPolicy",
    "PagedPrefixCache",
    "PrefixCache",
    "RadixPrefixCache",
    "ReplayResult",
    "Segment",
    "Usage",
    "Window",
    "replay",
]
