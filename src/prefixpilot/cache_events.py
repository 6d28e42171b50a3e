"""What engines tell of their KV cache, in one vocabulary: pages stored and removed, caches cleared, requests evicted.

Wire formats are decoded into these in :mod:`prefixpilot.engines`; whoever keeps a picture of a cache reads only these.
A page is the engine's fixed KV unit (vLLM and SGLang call it a block): a number of consecutive tokens of a prompt.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple, NewType

from prefixpilot.core import RequestId

PageHash = NewType("PageHash", bytes)
"""The engine's name of a page: it stands for the page's tokens, all before them, and what else selects the cache.

Integers of the wire, signed or not, become the 8 bytes of their two's complement, big end first, so that one page has
one name whichever way an engine writes it. Names mean something within one engine only.
"""

GPU: Final = "GPU"
"""The medium that an engine computes from. vLLM says it on a CPU too; an engine that names none means this one."""


class PagesStored(NamedTuple):
    """Consecutive pages of one prompt are now held in a medium.

    Attributes:
        pages: their names, in the order of the prompt; one or more.
        parent: the page before the first of them; ``None`` if the first starts the prompt.
        token_ids: tokens of all of them, ``page_size`` for each; empty if the engine did not tell.
        page_size: tokens in a page; at least 1.
        medium: where they are held: ``GPU``, or the name of a lower tier.
        adapter: name (or, failing that, number as text) of the LoRA adapter; ``None`` for the base model.
        extra_keys: for each page, what else is part of its name (a cache salt, hashes of images); empty if nothing is.
        group: which of the engine's KV cache groups (hybrid models have several).
    """

    pages: tuple[PageHash, ...]
    parent: PageHash | None
    token_ids: tuple[int, ...]
    page_size: int
    medium: str = GPU
    adapter: str | None = None
    extra_keys: tuple[Hashable, ...] = ()
    group: int = 0


class PagesRemoved(NamedTuple):
    """Pages are no longer held in a medium; another medium may still hold them."""

    pages: tuple[PageHash, ...]
    medium: str = GPU
    group: int = 0


class CacheCleared(NamedTuple):
    """Nothing is held any more, in any medium."""


class RequestsEvicted(NamedTuple):
    """The prefixes of these requests are gone: the paper's request-id protocol (section 4)."""

    request_ids: tuple[RequestId, ...]


CacheEvent = PagesStored | PagesRemoved | CacheCleared | RequestsEvicted


class EventBatch(NamedTuple):
    """Events that one data-parallel rank of one engine sent together.

    Attributes:
        source: which endpoint they came from, as the user named it.
        rank: data-parallel rank, 0 or more. Each rank has a cache of its own.
        sequence: number of the batch in its source and rank; consecutive ones differ by 1.
        events: in the order in which they happened.
    """

    source: str
    rank: int
    sequence: int
    events: tuple[CacheEvent, ...]
