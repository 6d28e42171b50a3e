"""Policies for what follows the cached prefix. Each says what comes first; the rest keeps the retriever's order.

Whatever is put first decides what later requests can share, and nothing else does: hits come from orders that
later requests repeat. See docs/decisions/0007 for what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log1p
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeAlias

from prefixpilot.core import BlockId
from prefixpilot.tails.window import Window

_START_CONTEXTS = 5
_START_USES = 0.2
_NEXT_CONTEXTS = 2
_MAX_PICKS = 64


_Candidate: TypeAlias = tuple[int, int, BlockId]
"""Recent contexts that hold a block (and all that stands before it), its tokens, the block."""


class Tail(NamedTuple):
    """What a policy orders.

    Attributes:
        prefix: the cached blocks that come before, in prompt order; may be empty.
        rest: the other distinct blocks of the request, the most relevant first.
        tokens: their lengths, in parallel.
        live: contexts that the cache holds now.
    """

    prefix: tuple[BlockId, ...]
    rest: Sequence[BlockId]
    tokens: Sequence[int]
    live: int


class TailPolicy(Protocol):
    """Pure: the same window and tail give the same answer, and neither is changed."""

    def __call__(self, window: Window, tail: Tail, /) -> list[BlockId]:
        """Distinct blocks of ``tail.rest`` that follow the prefix first; those left out come after, by relevance."""


def relevance(window: Window, tail: Tail) -> list[BlockId]:
    """Nothing is moved."""
    return []


def popularity(window: Window, tail: Tail) -> list[BlockId]:
    """By the number of recent contexts that hold the block; ties by relevance. O(k log k)."""
    return _by_worth(dict(zip(tail.rest, window.counts(tail.rest), strict=True)))


def popularity_tokens(window: Window, tail: Tail) -> list[BlockId]:
    """By recent contexts that hold the block x its tokens; ties by relevance. O(k log k)."""
    found = window.most_used(tail.rest, tail.tokens)
    if found is not None:
        return found
    uses = zip(tail.rest, window.counts(tail.rest), tail.tokens, strict=True)
    return _by_worth({block: count * tokens for block, count, tokens in uses})


def _by_worth(worth: dict[BlockId, int]) -> list[BlockId]:
    """The blocks of most worth first; ties keep their order."""
    return sorted(worth, key=worth.__getitem__, reverse=True)


def mix(window: Window, tail: Tail) -> list[BlockId]:
    """By rank - 2 log(1 + recent contexts that hold the block). O(k log k)."""
    rank = {block: place for place, block in enumerate(tail.rest)}
    return sorted(tail.rest, key=lambda block: rank[block] - 2 * log1p(window.holders(block).bit_count()))


def chain(window: Window, tail: Tail) -> list[BlockId]:
    """Next is the block most often in a context with the one just placed; ties by popularity, then rank. O(k^2)."""
    left = [(window.holders(block), block) for block in tail.rest]
    last = window.holders(tail.prefix[-1]) if tail.prefix else 0
    lead: list[BlockId] = []
    while left:
        counts = [((holders & last).bit_count(), holders.bit_count()) for holders, _ in left]
        last, block = left.pop(max(range(len(left)), key=counts.__getitem__))
        lead.append(block)
    return lead


def co_occurrence(window: Window, tail: Tail) -> list[BlockId]:
    """Next is the block worth most: recent contexts that hold it and all that stands before it, x its tokens.

    * At least two contexts must speak for a block. For the very first block of a prompt five, and so many that it is
      expected 0.2 times or more in as many requests as the cache holds: what is rarer is gone before it is used.
    * A more relevant block that stood in all of those contexts goes before it: whoever has the one has the other.
      So ids that each stand for all before them keep the order of arrival.
    * Blocks for which too few contexts speak keep the retriever's order, behind. At most 64 are picked.

    O(picks x k), each a bit operation on the window.
    """
    needed = float(_NEXT_CONTEXTS)
    if not tail.prefix:
        needed = max(_START_CONTEXTS, _START_USES * len(window) / max(1, tail.live))
    together = window.standing_together(tail.prefix, tail.rest, tail.tokens, needed, _NEXT_CONTEXTS, _MAX_PICKS)
    return _co_occurrence(window, tail, needed) if together is None else together


def _co_occurrence(window: Window, tail: Tail, needed: float) -> list[BlockId]:
    """:func:`co_occurrence` where ``needed`` contexts must speak for the first block."""
    common = window.holders_of_all(tail.prefix)
    left = list(zip(window.holders_of_each(tail.rest), tail.tokens, tail.rest, strict=True))
    lead: list[BlockId] = []
    while len(lead) < _MAX_PICKS:
        spoken_for: list[_Candidate] = []
        best = best_worth = 0
        for holders, tokens, block in left:
            holders &= common
            count = holders.bit_count()
            if count < _NEXT_CONTEXTS:
                continue
            if count >= needed and count * tokens > best_worth:
                best, best_worth = len(spoken_for), count * tokens
            spoken_for.append((holders, tokens, block))
        if not best_worth:
            break
        common, _, block = spoken_for.pop(_first_that_covers(spoken_for, best))
        lead.append(block)
        left, needed = spoken_for, float(_NEXT_CONTEXTS)
    return lead


def _first_that_covers(candidates: Sequence[_Candidate], best: int) -> int:
    """The first, so most relevant, candidate that stood in every context in which the best one did."""
    covered = candidates[best][0]
    return next(i for i, (holders, _, _) in enumerate(candidates) if not covered & ~holders)


POLICIES: Mapping[str, TailPolicy] = MappingProxyType(
    {
        "relevance": relevance,
        "popularity": popularity,
        "popularity-tokens": popularity_tokens,
        "mix": mix,
        "chain": chain,
        "co-occurrence": co_occurrence,
    }
)
"""The fixed policies, by their names in :class:`~prefixpilot.config.PilotConfig`."""
