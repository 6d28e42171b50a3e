"""The exact optimum of small batches, by dynamic programming over subsets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

from prefixpilot.core import BatchContext, BlockId


def most_saved_tokens(contexts: Sequence[BatchContext]) -> int:
    """Tokens that the best trie over the contexts saves. O(3^n): for n up to about 12.

    saved(m) = tokens common to all of m + the best split of m into two non-empty parts; saved of one context is 0. A
    batch need not have a common block: then the first term is 0.
    """
    length: dict[BlockId, int] = {}
    for context in contexts:
        length.update(zip(context.blocks, context.tokens, strict=True))
    sets = [frozenset(context.blocks) for context in contexts]

    @cache
    def common(mask: int) -> frozenset[BlockId]:
        low = mask & -mask
        own = sets[low.bit_length() - 1]
        return own if mask == low else own & common(mask ^ low)

    @cache
    def saved(mask: int) -> int:
        low = mask & -mask
        if mask == low:
            return 0
        rest = mask ^ low
        best, part = 0, rest
        while part:
            best = max(best, saved(part) + saved(mask ^ part))
            part = (part - 1) & rest
        return best + sum(length[block] for block in common(mask))

    return saved((1 << len(contexts)) - 1)


def saved_tokens(planned: Sequence[BatchContext]) -> int:
    """Tokens that each context shares, as a prefix, with the one before it."""
    total = 0
    for before, after in pairwise(planned):
        for a, b, tokens in zip(before.blocks, after.blocks, after.tokens, strict=False):
            if a != b:
                break
            total += tokens
    return total
